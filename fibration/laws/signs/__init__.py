"""What is known of a formula for all sizes at once: its signs, its branches, its behaviour near ratio 1.

`assumptions.py` finds signs. It uses ranges of atoms, populations of strata and signs of polynomials; `smooth_signs.py`
adds formulas with exponentials. `branches.py` splits a formula at its conditions. `claim.py` shows that it has a value.
`neighbourhood.py` and `coinciding.py` look near ratio 1. No module guesses: what is not shown stays open.
"""
