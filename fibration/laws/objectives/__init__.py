"""Laws of the objective: weights, conditions, advantages and penalties, which are formulas of tokens.

Each law (objective, causal, baseline, kl_gradient) has a module, with its search beside it; `agreement.py` has two,
agreement and mask_open.
`samples.py` finds which samples a formula reads, `own_reward.py` and `one_other_reward.py` how an advantage depends on
rewards, `divergences.py` which divergence a penalty's gradient belongs to.
"""
