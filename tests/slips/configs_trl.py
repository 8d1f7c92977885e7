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
        "the reasons of the worst laws come last",
        "cli/test_configs.py",
        "for verdict in sorted(report.verdicts, key=lambda v: v.law not in FIRST):",
        "for verdict in sorted(report.verdicts, key=lambda v: v.law in FIRST):",
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
