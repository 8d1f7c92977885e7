"""The loss of a config of verl while it is read, and `rollout_correction`: weights and masks of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fibration.configs.draft import Draft as AnyDraft
from fibration.configs.draft import batch, mean_of, together, trajectory
from fibration.configs.findings import ERROR, Severity
from fibration.configs.verl.options import CORRECTION
from fibration.configs.weights import EngineWeight
from fibration.language.expressions import Expression, as_expression
from fibration.language.operators import exp, minimum, where
from fibration.language.statistics import largest, mean, total


@dataclass
class Draft(AnyDraft):
    """What is known of the loss.

    - `is_score`: the policy loss is `w·A·log π`. `condition`: tokens that the policy loss drops.
    - `mean`: the `loss_agg_mode` that the policy loss has, whatever the option says.
    - `kept`: what every token of the response mask meets after `rollout_rs`; `by_token`: it drops single tokens.
    - `weighs_rows`: a row has the geometric mean of the weights of its tokens.
    - `closed`: why `rollout_rs` drops tokens of which engine and trainer agree, or "".
    """

    is_score: bool = False
    condition: Expression | None = None
    mean: str = ""
    kept: tuple[Expression, ...] = ()
    by_token: bool = False
    weighs_rows: bool = False
    closed: str = ""

    @property
    def is_async(self) -> bool:
        return any(name.startswith("async_training.") for name in self.options.given)

    @property
    def is_legacy(self) -> bool:
        """Whether one of verl's older trainers runs it."""
        return not self.options["use_v1"] or self.is_async

    @property
    def mask(self) -> Expression | None:
        """The conditions of `kept` together; None where `rollout_rs` drops nothing."""
        return together(self.kept) if self.kept else None

    def give_up(self, law: str, option: str, why: str) -> None:
        """Gives a law up, as verl's own choice: `loss_mode=cispo: why`."""
        self.gives_up[law] = self.options.brief(option, why)

    def blame(self, option: str, why: str, severity: Severity, change: str) -> str:
        """Says `clip_ratio_low=1.5: why`, and returns it."""
        return self.say(self.options.brief(option, why), severity, change)

    def blame_outside(self, option: str) -> str:
        """Says that a condition does not hold where engine and trainer agree, and returns it."""
        why = "1 does not lie inside, so that tokens of which engine and trainer agree are dropped"
        return self.blame(option, why, ERROR, f"{option}=0.5_2.0")


MASKS = (
    *("token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3"),
    *("seq_mean_k1", "seq_mean_k2", "seq_mean_k3", "seq_max_k2", "seq_max_k3"),
)
OF: dict[str, Literal["token", "answer", "mean"]] = {"token": "token", "seq_sum": "answer", "seq_mean": "mean"}


@dataclass(frozen=True)
class Weights:
    """The weight of a token, and the condition outside of which it is 0.

    - `why`: why the weight of a token depends on later ones, or "". `of_rows`: a condition is one of whole rows.
    - `scaled`: why the weight, with the condition, is not 1 where the two policies agree, or "".
    """

    formula: Expression
    condition: Expression | None = None
    why: str = ""
    of_rows: bool = False
    scaled: str = ""


def weights(d: Draft, prefix: str, log_ratio: Expression, left: Expression | None = None) -> Weights | None:
    """What `rollout_is` multiplies losses by.

    - `prefix`: where the options are, with a dot at the end.
    - `left`: the condition that the tokens meet of which verl takes sums. None: all tokens meet it.
    """
    o, name, bounds = d.options, f"{prefix}rollout_is", f"{prefix}rollout_is_threshold"
    if o.raw(name) is None or o.raw(bounds) is None:
        return None
    whole = o[name] == "sequence"
    rho = exp(total(_of(log_ratio, left), over=trajectory) if whole else log_ratio)
    *below, upper = _numbers(d, bounds, str(o.raw(bounds)))  # `2.0` is an upper bound, `"0.5_5.0"` are two
    lower = below[0] if below else None
    condition, scaled = None, ""
    if lower is None:
        size = formula = minimum(rho, _above(d, "ceiling", upper, "rollout_ceiling"))
    else:
        condition = _within(d, rho, "least", lower, "most", upper, "rollout_")
        formula, size = rho, where(condition, rho, 0)
    if reads_engine(d, prefix):
        level: Literal["answer", "token"] = "answer" if whole else "token"
        d.engine.append(EngineWeight(f"{name}={o.raw(name)}", level, bool(lower), lower, upper))
    why = f"rollout_is={o.raw(name)}: a row is weighed whole" if whole else ""
    if is_normed := o[f"{prefix}rollout_is_batch_normalize"]:
        if d.mask is not None and prefix != CORRECTION:
            raise o.refusal(
                f"{prefix}rollout_is_batch_normalize",
                f"false with {CORRECTION}rollout_rs: no word says what is left in the batch",
            )
        average = mean(size, over=batch, of=trajectory if whole else None)
        formula = formula / (average if condition is None else where(average > 1e-8, average, 1))
        why = "rollout_is_batch_normalize: weights are divided by their mean over the batch"
        d.say(
            "rollout_is_batch_normalize divides by the mean weight of all rows that verl sampled for a training step; "
            "here it is that of the batch at hand, a mini-batch. verl adds 1e-8 to what it counts."
        )
    d.say("verl cuts log ratios to the rollout engine at ±20 before it exponentiates them.")
    if lower is None and upper < 1 and not is_normed:
        scaled = f"where engine and trainer agree, the weight is {upper:g}, not 1"
        scaled = d.blame(bounds, scaled, ERROR, f"{bounds}=2.0")
    elif lower is not None and not lower < 1 < upper:
        scaled = d.blame_outside(bounds)
    return Weights(formula, condition, why, whole, scaled)


def reads_engine(d: Draft, prefix: str) -> bool:
    """Whether the ratios of a correction are those of trainer and engine."""
    return prefix == CORRECTION or bool(d.options["bypass_mode"])


def masks(
    d: Draft, prefix: str, log_ratio: Expression, left: Expression | None = None
) -> tuple[tuple[Expression, ...], bool]:
    """The conditions of `rollout_rs` that a kept token meets, and whether one of them drops single tokens."""
    name, bounds = f"{prefix}rollout_rs", f"{prefix}rollout_rs_threshold"
    if d.options.raw(name) is None:
        return (), False
    modes = list(dict.fromkeys(_parts(d.options.raw(name))))
    if not modes or not set(modes) <= set(MASKS):
        raise d.options.refusal(name, f"some of {', '.join(MASKS)}, with commas between")
    conditions = []
    for mode, (lower, upper) in zip(modes, _thresholds(d, bounds, modes), strict=True):
        condition = _condition(d, mode, lower, upper, log_ratio, left, len(modes) > 1)
        conditions.append(condition)
        if mode.startswith("seq"):
            d.gives_up[f"causal of condition {condition}"] = f"rollout_rs={mode}: a row is dropped whole"
        if lower is not None and reads_engine(d, prefix):
            d.engine.append(EngineWeight(f"rollout_rs={mode}", OF[mode[:-3]], True, 1 / upper, 1 / lower))
        if lower is not None and not lower < 1 < upper:
            d.closed = d.gives_up[f"mask_open of condition {condition}"] = d.blame_outside(bounds)
    if any("_mean_" in mode for mode in modes):
        d.say("verl adds 1e-8 to the lengths of rows that it divides by, in the means of rollout_rs too.")
    return tuple(conditions), any(mode.startswith("token") for mode in modes)


def _condition(
    d: Draft,
    mode: str,
    lower: float | None,
    upper: float,
    log_ratio: Expression,
    left: Expression | None,
    several: bool,
) -> Expression:
    kind, level = mode[-2:], mode[:-3]
    least, most = (f"{mode}_least", f"{mode}_most") if several else ("least", "most")
    x = {"k1": log_ratio, "k2": log_ratio**2 / 2, "k3": exp(log_ratio) - 1 - log_ratio}[kind]
    if level == "seq_mean":
        x = mean_of(x, trajectory, left)
    elif level != "token":
        x = (total if level == "seq_sum" else largest)(_of(x, left), over=trajectory)
    if lower is not None:  # the statistic of k1 is -log ρ, between the logarithms of the bounds
        return _within(d, exp(x), least, 1 / upper, most, 1 / lower, f"{mode}_")
    return x <= d.parameter(most, upper, otherwise=f"{mode}_most")


def _of(formula: Expression, left: Expression | None) -> Expression:
    """A formula, and 0 at the tokens that are dropped."""
    return formula if left is None else where(left, formula, 0)


def _above(d: Draft, name: str, value: float, otherwise: str) -> Expression:
    """An upper bound: a parameter above 1, or the number."""
    return d.parameter(name, value, lower=1, otherwise=otherwise) if value > 1 else as_expression(value, name)


def _within(d: Draft, rho: Expression, least: str, lower: float, most: str, upper: float, otherwise: str) -> Expression:
    """Whether a ratio is between two bounds, called `least` and `most`. A lower one below 1 is a parameter."""
    low: Expression = as_expression(lower, least)
    if lower < 1:
        low = d.parameter(least, lower, upper=1, otherwise=f"{otherwise}least")
    return (rho >= low) & (rho <= _above(d, most, upper, f"{otherwise}most"))


# ---------------------------------------------------------------- thresholds


def _parts(value: object) -> list[str]:
    return [part.strip() for part in str(value).split(",") if part.strip()]


def _thresholds(d: Draft, name: str, modes: list[str]) -> list[tuple[float | None, float]]:
    """The bounds of each mask. One threshold is that of all; a single bound of k1 has its inverse below."""
    if d.options.raw(name) is None:
        raise d.options.refusal(name, "a threshold, since rollout_rs is set", f"{name}=0.5_2.0")
    texts = _parts(d.options.raw(name))
    if len(texts) not in (1, len(modes)):
        raise d.options.refusal(name, f"one threshold, or {len(modes)}: one for each of {', '.join(modes)}")
    bounds: list[tuple[float | None, float]] = []
    for mode, text in zip(modes, texts * len(modes) if len(texts) == 1 else texts, strict=True):
        found = _numbers(d, name, text)
        if len(found) == 2 and not mode.endswith("k1"):
            raise d.options.refusal(name, f"one upper bound for {mode}")
        lower = found[0] if len(found) == 2 else 1 / found[0]
        if mode.endswith("k1") and lower > found[-1]:
            raise d.options.refusal(name, f"for {mode} an upper bound of 1 or more, whose inverse is the lower one")
        bounds.append((lower if mode.endswith("k1") else None, found[-1]))
    return bounds


def _numbers(d: Draft, name: str, text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split("_", 1))
    except ValueError:
        found = ()
    if not found or isinstance(d.options.raw(name), bool) or not all(1e-300 <= x <= 1e300 for x in found):
        raise d.options.refusal(name, 'a number above 0, or two as "0.5_2.0"')
    if found[0] > found[-1]:
        raise d.options.refusal(name, "a lower bound that is at most the upper one")
    return found
