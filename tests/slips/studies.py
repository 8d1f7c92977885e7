"""Slips in the studies under `docs/`."""

from slips.slip import slip

SLIPS = (
    slip(
        "a curve's first and last looks weigh as much as the others", "studies/test_choose",
        "return (y[..., 1:] + y[..., :-1]).mean(-1) / 2", "return y.mean(-1)",
    ),
    slip(
        "the worst domain is the one that is worst on the whole", "studies/test_choose",
        "float(area(accuracy.min(1)))", "float(area(accuracy.T).min())",
    ),
    slip(
        "a peak is that of the whole curve", "studies/test_stats",
        "low[1:] = (y[1:] < peak[:-1] / 2)", "low[1:] = (y[1:] < y.max(0) / 2)",
    ),
    slip(
        "half of a peak is a collapse", "studies/test_stats",
        "(y[1:] < peak[:-1] / 2) & (peak[:-1] >= LEAST)", "(y[1:] <= peak[:-1] / 2) & (peak[:-1] >= LEAST)",
    ),
    slip(
        "signs that say as much as those observed do not count", "studies/test_stats",
        "(total >= abs(d.sum()) - 1e-12 * np.abs(d).sum())", "(total > abs(d.sum()) + 1e-12 * np.abs(d).sum())",
    ),
    slip(
        "the interval of a sign-flip test has one end too far in", "studies/test_stats",
        "return float(means[k - 1]), float(means[-k])", "return float(means[k]), float(means[-k])",
    ),
    slip(
        "McNemar's test counts one tail", "studies/test_stats",
        "min(1.0, 2 * sum(comb(n, k)", "min(1.0, sum(comb(n, k)",
    ),
    slip(
        "Holm's p may fall", "studies/test_stats",
        "np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))", "(p[order] * np.arange(len(p), 0, -1))",
    ),
    slip(
        "nothing is cut from an interquartile mean's resamples", "studies/test_stats",
        "found = weights(len(x), len(x) // 4) @ np.sort(x)", "found = weights(len(x)) @ np.sort(x)",
    ),
    slip(
        "equals count as better", "studies/test_stats",
        "better = (a > b) + (a == b) / 2", "better = (a >= b) + 0.0",
    ),
    slip(
        "a trick's domain counts", "studies/test_analyse",
        "enumerate(CONDITIONS[condition].tricks) if trick is None]", "enumerate(CONDITIONS[condition].tricks)]",
    ),
    slip(
        "arms are paired by their places, not by seeds", "studies/test_analyse",
        "return np.array([found[seed] for seed in seeds])", "return getattr(self, name)[: len(list(seeds))]",
    ),
    slip(
        "an arm goes along its frontier the wrong way", "studies/test_analyse",
        "np.interp(middle, kl, score) - np.interp(own, kl, score)", "np.interp(own, kl, score) - np.interp(middle, kl, score)",
    ),
    slip(
        "the frontier is all settings", "studies/test_analyse",
        "while len(found) > 1 and not above(found[-2], found[-1], (x, y)):", "while len(found) > 10**9:",
    ),
    slip(
        "a setting of one lucky seed is chosen", "studies/test_choose",
        "for s, y in of.items() if set(y) == seeds}", "for s, y in of.items()}",
    ),
    slip(
        "a response sees the others to its prompt", "studies/test_model",
        "mine = (owner[None] == -1) | (owner[None] == owner[:, None])", "mine = owner[:, None] >= -1 + 0 * owner[None]",
    ),
    slip(
        "a sampler's attention is not scaled", "studies/test_model",
        "q = q.flatten(0, 2) * q.shape[-1] ** -0.5", "q = q.flatten(0, 2)",
    ),
    slip(
        "a response goes on after its end", "studies/test_model",
        "token = torch.where(said[-1] == END, END, token) if said else token", "token = token.clone()",
    ),
    slip(
        "models side by side draw one noise", "studies/test_model",
        "[torch.rand(RESPONSE, rows, VOCABULARY, generator=draw) for draw in draws]",
        "[torch.rand(RESPONSE, rows, VOCABULARY, generator=draws[0]) for draw in draws]",
    ),
    slip(
        "samples are fresher than their lag", "studies/test_learning",
        "self.put(self.rollouts(weights, step), [step + lag for lag in", "self.put(self.rollouts(weights, step), [step + max(1, lag - 1) for lag in",
    ),
    slip(
        "all first steps of a stale domain train on one batch", "studies/test_learning",
        "self.put(self.rollouts(weights, step - 1000), [step if", "self.put(self.rollouts(weights, -1000), [step if",
    ),
    slip(
        "advantages are divided by the deviation of a population", "studies/test_learning",
        "rewards.std(-1, keepdim=True)", "rewards.std(-1, correction=0, keepdim=True)",
    ),
    slip(
        "shuffled labels stay as they are for a run", "studies/test_arms",
        "generator=stream(run.seed, LABEL_STREAM, step)", "generator=stream(run.seed, LABEL_STREAM)",
    ),
    slip(
        "the gradients of domains are clipped after they are added up", "studies/test_learning",
        "gradient = gradient * (bound / gradient.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1)",
        "gradient = gradient * (bound / bound)",
    ),
    slip(
        "Adam's second moment begins without correction", "studies/test_learning",
        "scale = (self.second / (1 - b ** (number + 1))).sqrt_()", "scale = (self.second / 1).sqrt_()",
    ),
    slip(
        "luck is the same in every step", "studies/test_learning",
        "stream(s, REWARD_STREAM, moment)", "stream(s, REWARD_STREAM)",
    ),
    slip(
        "what moves up is pushed outward", "studies/test_measures",
        "outward = counted & (values * log_ratio > 0)", "outward = counted & (values > 0)",
    ),
    slip(
        "a divergence is taken from now to before", "studies/test_measures",
        "(self.before.exp() * (self.before - now))", "(now.exp() * (now - self.before))",
    ),
    slip(
        "the largest of several steps is their mean", "studies/test_measures",
        'LARGEST = ("amplification", "grad_norm")', 'LARGEST = ("amplification",)',
    ),
    slip(
        "a sum is not taken modulo 10", "studies/test_measures",
        "digits.cumsum(-1) % 10,", "digits.cumsum(-1),",
    ),
    slip(
        "a placebo without a bound has one", "studies/test_arms",
        ', of="inward_domain", fixed={"C_domain": 1e9})', ', of="inward_domain")',
    ),
    slip(
        "processes share what is left of a plan", "studies/test_runner",
        "[run for run in PARTS[part](results)[worker::workers] if key(asdict(run)) not in ready]",
        "[run for run in PARTS[part](results) if key(asdict(run)) not in ready][worker::workers]",
    ),
    slip(
        "a result is written behind a line that was cut off", "studies/test_runner",
        '"\\n" * (not ended) + json', '"" + json',
    ),
    slip(
        "what is chosen is always the study's own", "studies/test_choose",
        "write_file(results / name, text)", "write_file(RESULTS / name, text)",
    ),
    slip(
        "every prompt group of a domain weighs alike", "studies/test_arms",
        "uniform() if below in (token, trajectory) else proportional(M)", "uniform()",
    ),
    slip(
        "the token's arm drifts with its answer", "studies/test_levels",
        "drift = mean(absolute(token_log_ratio), over=level)", "drift = mean(absolute(token_log_ratio), over=trajectory)",
    ),
    slip(
        "the trajectory's arm weighs every token", "studies/test_levels",
        "weight = where(advantage * token_log_ratio > 0, 1 / maximum(drift / Parameter(\"C\", default=0.1), 1), 1)",
        "weight = where((advantage * token_log_ratio > 0) if level is token else absolute(advantage) > 0, 1 / maximum(drift / Parameter(\"C\", default=0.1), 1), 1)",
    ),
    slip(
        "a sampled token sees one token more than a trained one", "studies/test_levels",
        "keys, values = kept[:, :, SEES[at].nonzero()[:, 0]]", "keys, values = kept[:, :, : at + 1]",
    ),
    slip(
        "an answer that turns to the other style is wrong", "studies/test_levels",
        "(answers < START) & (answers % 10 == wanted)", "(answers < 10) & (answers % 10 == wanted)",
    ),
    slip(
        "training has the prompts that are held out", "studies/test_levels",
        "torch.randint(1, 10, (prompts, 1), generator=draw)", "torch.randint(0, 10, (prompts, 1), generator=draw)",
    ),
    slip(
        "a grid grows away from its best", "studies/test_levels",
        "grid.append(grid[-1] + 1)", "grid.insert(0, grid[0] - 1)",
    ),
    slip(
        "a small effect counts as help", "studies/test_levels",
        "if holm < ALPHA and low > 0 and mean >= OF_INTEREST:", "if holm < ALPHA and low > 0:",
    ),
)  # fmt: skip
