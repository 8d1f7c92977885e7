"""Laws of gates far from ratio 1: positivity and inward, with their searches.

`pushes.py` and `further_out.py` prove inward; `deviations.py` and `shrinking.py` prove positivity over several levels.
"""
