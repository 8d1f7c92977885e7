"""What is known of a formula for all sizes at once: its signs, its branches, its behaviour near ratio 1.

`assumptions.py` is where a sign is asked for. It uses ranges of atoms, populations of strata and signs of polynomials;
`smooth_signs.py` adds formulas with exponentials. `branches.py` splits a formula at its conditions. `claim.py` asks
whether it has a value. `neighbourhood.py` and `coinciding.py` look near ratio 1. None of them guesses.
"""
