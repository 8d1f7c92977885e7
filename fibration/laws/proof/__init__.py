"""What the laws prove with: signs of formulas, their branches, their behaviour near 0, sums over fibres.

Everything is decided for all sizes at once. A procedure that cannot decide says so; it never guesses.

May import: `errors`, `language`.
"""
