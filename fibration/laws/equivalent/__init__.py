"""Whether two losses give every token of every batch the same coefficient.

`decide.py` asks; `same_loss.py` proves, with both losses in the same variables (`shared_means.py`, `side_by_side.py`,
`token_formulas.py`) and branch by branch (`branchwise.py`); `search.py` looks for a batch on which they differ.
"""
