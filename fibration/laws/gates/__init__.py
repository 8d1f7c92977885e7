"""A gate along the real line, the coordinate that it acts in, and the law `recovery`.

`pieces.py` orders a gate's breakpoints. `reach.py` bounds the residuals that reach it, `contributions.py` what it adds
to the ratio.
"""
