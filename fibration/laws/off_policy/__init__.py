"""Laws of gates far from ratio 1: positivity and inward, with their searches.

`pushes.py` and `further_out.py` prove inward; `deviations.py` proves positivity over several levels.
"""
