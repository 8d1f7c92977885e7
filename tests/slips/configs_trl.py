"""Slips in `fibration/configs`, with TRL's options."""

from slips.slip import slip

SLIPS = (
    slip(
        "a generation that begins within a step is as old as one that does not",
        "configs/test_trl.py",
        "away = (in_step - math.gcd(in_step, passes) + passes - 1) // in_step",
        "away = (passes - 1) // in_step",
    ),
    slip(
        "an option that nobody knows is ignored",
        "configs/test_options.py",
        "name not in defaults and name not in exact and not name.startswith(below)",
        "name is None",
    ),
    slip(
        "a word after a config that is no option of it becomes one",
        "configs/test_files.py",
        '_OVERRIDE = re.compile(r"\\+{0,2}[A-Za-z_][\\w.]*=")',
        '_OVERRIDE = re.compile(r"[^=]+=")',
    ),
    slip(
        "bnpo of one row is a mean over tokens",
        "configs/test_trl.py",
        'if self.kind in BY_ROWS or (self.kind == "bnpo" and self.options.whole("per_device_train_batch_size") == 1):',
        "if self.kind in BY_ROWS:",
    ),
    slip(
        "the ratio of a completion is that of its tokens in the divergence",
        "configs/test_trl.py",
        'kl = Parameter("beta", default=beta) * exp(mean(token_log_ratio, over=trajectory)) * k3',
        'kl = Parameter("beta", default=beta) * exp(token_log_ratio) * k3',
    ),
    slip(
        "cispo reads its bound as a distance from 1",
        "configs/test_trl.py",
        "return Token({token: Gate(minimum(residual, ceiling - 1))}, reasons=reasons)",
        "return Token({token: Gate(minimum(residual, ceiling))}, reasons=reasons)",
    ),
    slip(
        "the gravest findings come last",
        "configs/test_options.py",
        "return tuple(sorted([*reasons, *given.values()], key=lambda f: SEVERITIES.index(f.severity)))",
        "return tuple(sorted([*reasons, *given.values()], key=lambda f: -SEVERITIES.index(f.severity)))",
    ),
    slip(
        "a config with errors is verified",
        "cli/test_configs.py",
        "return super().ok and not self.failing",
        "return super().ok",
    ),
    slip(
        "a mask of vespo's weights with a bound of 1 gives up no law",
        "configs/test_trl.py",
        'reasons[f"agreement of weight {weight}"] = edge',
        "pass",
    ),
    slip(
        "a cut of what is sampled is no error for the weight of an answer",
        "configs/test_trl.py",
        "return ERROR, (",
        "return WARNING, (",
    ),
    slip(
        "the weight of an answer has a bound that shrinks with the square of its length",
        "configs/test_options.py",
        "return min(1.0, math.sqrt(most) * math.exp(-length * deviation**2 / 8))",
        "return min(1.0, math.sqrt(most) * math.exp(-(length**2) * deviation**2 / 8))",
    ),
    slip(
        "a config of another trainer is that of GRPOTrainer",
        "configs/test_trl.py",
        "refuse_others(config)",
        "pass",
    ),
    slip(
        "configs are compared whatever their numbers are",
        "cli/test_configs.py",
        "one, other = (at_defaults(h, without=named) for h in pair)",
        "one, other = pair",
    ),
    slip(
        "a loss with other names has no numbers of the config",
        "cli/test_configs",
        "numbers |= {partners[name]: value for name, value in numbers.items() if name in partners}",
        "",
    ),
)
