"""Laws of the objective: weights, conditions, advantages and penalties, which are formulas of tokens.

Each law (objective, baseline, kl_gradient) has a module; `weights.py` has agreement, mask_open and causal.
`token_search.py` looks for counterexamples to formulas of one token, `baseline_search.py` and `kl_gradient_search.py`
to those two laws.
`samples.py` finds which samples a formula reads, `one_other_reward.py` how an advantage depends on one
reward, `divergences.py` which divergence a penalty's gradient belongs to.
"""
