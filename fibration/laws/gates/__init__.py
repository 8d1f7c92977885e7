"""A gate along the real line, the coordinate that it acts in, and the law `recovery`.

`pieces.py` orders a gate's breakpoints. `contributions.py` bounds the residuals that reach it, and what it adds
to the ratio.
"""
