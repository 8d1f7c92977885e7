"""Whether two losses give every token of every batch the same coefficient.

`decide.py` has the public function. `same_loss.py` proves: it writes both losses in the same variables
(`shared_means.py`, `token_formulas.py`) and compares them branch by branch (`branchwise.py`). `search.py` looks for a
batch on which they differ and describes it (`log_prob_samples.py` draws its log-probs). `conditions_met.py` says which
batches meet the conditions, and finds one that does.
"""
