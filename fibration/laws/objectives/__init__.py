"""Laws of the objective: weights, conditions, advantages and penalties, which are formulas of tokens.

objective, agreement, mask_open, causal, baseline and kl_gradient stand beside their searches. `samples.py` says which
samples a formula reads, `own_reward.py` and `one_other_reward.py` which rewards, `divergences.py` which divergence.
"""
