"""Slips in shipped losses."""

from slips.slip import slip

SLIPS = (
    slip(
        "GSPO-token's own ratio has a value too", "published",
        "where(passes, gspo_token_x - stop(gspo_token_x), 0)) / T)", "where(passes, gspo_token_x, 0)) / T)",
    ),
    slip(
        "geometric masks count the tokens that they drop", "published",
        '(mean_ratio <= most), normaliser="kept")', "(mean_ratio <= most))",
    ),
    slip(
        "a ratio that ASPO turns over is turned over where the advantage is negative", "published",
        "where(advantage >= 0, 1 / r, r), ceiling)", "where(advantage >= 0, r, 1 / r), ceiling)",
    ),
    slip(
        "CISPO's cap is a deviation in both conventions", "published",
        "minimum(residual, cispo_absolute_ceiling - 1)", "minimum(residual, cispo_absolute_ceiling)",
    ),
    slip(
        "bad answers are what off-policy masks keep", "published",
        "(mean(-token_log_ratio, over=trajectory) <= delta)", "(mean(token_log_ratio, over=trajectory) <= delta)",
    ),
    slip(
        "the entropy's surrogate has the gradient of `r·log π`", "published",
        "exp(token_log_ratio) * (log_prob(current) - 1)", "exp(token_log_ratio) * log_prob(current)",
    ),
    slip(
        "KL-Cov takes all but the largest covariances", "published",
        "where(cov > quantile(cov, level, over=batch), coef", "where(cov <= quantile(cov, level, over=batch), coef",
    ),
    slip(
        "prime-rl's square is a half", "published",
        '"square": prime_rl_tau * token_log_ratio**2', '"square": prime_rl_tau / 2 * token_log_ratio**2',
    ),
    slip(
        "RLOO compares an answer with itself", "published",
        "advantages=centred(reward, over=prompt_group, leave_one_out=True),",
        "advantages=centred(reward, over=prompt_group),",
    ),
    slip(
        "generalised advantages count later values whole", "published",
        "after(reward + (1 - lam) / lam * value,", "after(reward + (1 - lam) * value,",
    ),
    slip(
        "Kimi's square is taken whole", "published",
        "Penalty(tau / 2 * total(token_log_ratio", "Penalty(tau * total(token_log_ratio",
    ),
    slip(
        "REAL pulls right answers down", "published",
        "where(advantage > 0, exp(-s), 0)", "where(advantage > 0, exp(s), 0)",
    ),
    slip(
        "CTPO counts a token's own ratio twice",
        "published",
        "weigh(exp(drifted))",
        "weigh(exp(drifted + token_log_ratio))",
    ),
    slip(
        "CTPO's band is closed at the first token", "published",
        "sqrt(position(over=trajectory) + 1)", "sqrt(position(over=trajectory))",
    ),
    slip(
        "FIPO's future leaves out the token itself", "published",
        "told + after(told, over=trajectory, discount=gamma)", "after(told, over=trajectory, discount=gamma)",
    ),
    slip(
        "REINFORCE++ pays a token's divergence from the next one on", "published",
        "beta * (kl + after(kl, over=trajectory))", "beta * after(kl, over=trajectory)",
    ),
    slip(
        "a set of answers is drawn with answers put back", "published",
        "(M - 1) * (M - 2) * (M - 3) / maximum((N - 1) * (N - 2) * (N - 3), 1)", "M * M * M / maximum(N * N * N, 1)",
    ),
    slip(
        "MaxRL divides by the mean of tokens", "published",
        "pass_rate = mean(reward, over=prompt_group, of=trajectory)", "pass_rate = mean(reward, over=prompt_group)",
    ),
    slip(
        "GDPO standardises the second reward with the first's weight", "published",
        "alone(second_reward, prompt_group) * weights[1]", "alone(second_reward, prompt_group) * weights[0]",
    ),
    slip(
        "a student leads its teacher", "published",
        "advantages=beta * (log_prob(teacher) - log_prob(old))", "advantages=beta * (log_prob(old) - log_prob(teacher))",
    ),
    slip(
        "tokens of low entropy are kept", "published",
        "entropy >= quantile(entropy, level, over=batch)", "entropy <= quantile(entropy, level, over=batch)",
    ),
    slip(
        "the ratio before k3 is held", "published",
        "beta * exp(token_log_ratio) * (exp(-x) + x - 1)", "beta * (exp(-x) + x - 1)",
    ),
)  # fmt: skip
