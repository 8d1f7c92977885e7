"""Laws of the objective: weights, conditions, advantages and penalties, which are formulas of tokens.

`objective.py` has the laws of weights and conditions: objective, agreement, mask_open, causal. The laws baseline and
kl_gradient have a module each.
`token_search.py` looks for counterexamples to formulas of one token, `baseline_search.py` and `kl_gradient_search.py`
to those two laws.
`samples.py` finds which samples a formula reads, `one_other_reward.py` how an advantage depends on one
reward, `divergences.py` which divergence a penalty's gradient belongs to.
"""
