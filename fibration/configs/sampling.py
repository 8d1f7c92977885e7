"""What an engine samples from, what a trainer makes of its log-probs, and bounds that are probably slips.

Readers of configs call `find_sampling` with the settings of their engine, whose names and plain values are in
`engines.toml`: those of vLLM, SGLang and transformers. A function that warns yields its finding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fibration.configs.findings import ERROR, WARNING, Finding, Severity
from fibration.configs.options import read_table
from fibration.errors import SpecError, listed, shown

GSPO = (3e-4, 4e-4)  # the bounds of GSPO's paper, below and above 1
WIDE = 0.01  # bounds of an answer's mean ratio from which on they hardly bind
LONG = 8192  # tokens of the answer in an example, where those of the config are few
DEVIATION = 0.05  # of a token's log ratio between trainer and engine, in examples
_DATA = read_table("engines")
CUTS, BENDS = (
    {name: line["plain"] for line in _DATA[key] for name in line["names"].split()} for key in ("cuts", "bends")
)
GREEDY = {"do_sample": False, "temperature": 0, "top_k": 1}  # the likeliest token alone
SETTINGS = frozenset((*CUTS, *BENDS, *_DATA["harmless"].split(), "do_sample", "temperature"))


@dataclass(frozen=True)
class EngineWeight:
    """The weight of a token that a trainer makes of trainer/engine, the ratio of its and the engine's probability.

    - `said`: the option, as `rollout_is=sequence`.
    - `level`: "token", the token's ratio; "answer", the product of an answer's ratios; "mean", their geometric mean.
    - `least`, `most`: the bounds of the weight, or None. It is cut to them, or 0 beyond them if it `masks`.
    """

    said: str
    level: Literal["token", "answer", "mean"]
    masks: bool
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class Setting:
    """A setting of an engine. `option`: its name in the config, as `generation_kwargs.top_p`."""

    option: str
    value: Any

    def __str__(self) -> str:
        return f"{self.option}={self.value}"


def number(value: Any) -> Any:
    """Returns the number that a text writes, as `"0.9"`, and any other value as it is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def find_sampling(
    settings: Mapping[str, Setting],
    temperature: float,
    weight: EngineWeight | None,
    is_raw: bool = False,
    processed: str = "",
    own: str = "temperature",
) -> Iterator[Finding]:
    """Yields what makes the engine sample from another distribution than the trainer's, and what the weights do then.

    - `settings`: the engine's, by their names in the tables above.
    - `temperature`: of the trainer's log-probs.
    - `weight`: what the trainer makes of trainer/engine; None if it ignores the engine's log-probs.
    - `is_raw`: the engine's log-probs are those of its whole distribution, before temperature and cuts.
    - `processed`: what to write for log-probs after temperature and cuts.
    - `own`: the option of `temperature`.
    """
    settings = {name: setting for name, setting in settings.items() if setting.value is not None}
    values = {name: number(setting.value) for name, setting in settings.items()}
    for name in {"top_p", "temperature"} & values.keys():
        if not isinstance(values[name], int | float):
            raise SpecError(f"the option '{settings[name].option}'", required="a number", found=shown(values[name]))
    if greedy := next((name for name, value in GREEDY.items() if name in values and values[name] == value), ""):
        plain = {"do_sample": "true", "top_k": "0"}.get(greedy, f"{temperature or 1:g}")
        yield Finding(
            ERROR,
            f"{settings[greedy]}: the engine takes the likeliest token, so that all answers to a prompt are the same, "
            "and none is better than the others.",
            f"{settings[greedy].option}={plain}",
        )
        return
    cuts = {n: s for n, s in settings.items() if n in CUTS and not _is_plain(values[n], CUTS[n])}
    if cuts:
        yield Finding(*_of_cuts(cuts, values, weight, is_raw), _plain(cuts, CUTS))
    bends = {n: s for n, s in settings.items() if n in BENDS and not _is_plain(values[n], BENDS[n])}
    if bends:
        yield Finding(WARNING, _of_bends(listed(bends.values()), weight, is_raw), _plain(bends, BENDS))
    heat = values.get("temperature", temperature)
    if heat != temperature:
        said = f"{settings['temperature']} beside temperature={temperature:g}"
        yield Finding(WARNING, _of_bends(said, weight, is_raw), f"{own}={heat:g}")
    elif is_raw and weight is not None and temperature != 1:
        yield Finding(
            WARNING,
            f"temperature={temperature:g}: the engine's log-probs are those of logits that are not divided by it, and "
            f"the trainer's are of divided ones: {weight.said} weighs tokens by the quotient.",
            processed,
        )


def _is_plain(value: Any, plain: list[Any]) -> bool:
    return value is None or value is False or value in ([], {}, "", *plain)


def _plain(settings: Mapping[str, Setting], table: Mapping[str, list[Any]]) -> str:
    return " ".join(f"{s.option}={table[name][0] if table[name] else 'null'}" for name, s in settings.items())


def _of_cuts(
    cuts: Mapping[str, Setting], values: Mapping[str, Any], weight: EngineWeight | None, is_raw: bool
) -> tuple[Severity, str]:
    """The severity and the sentence for tokens that are left out. Only `top_p` alone bounds the mass that is kept."""
    top = values["top_p"] if set(cuts) == {"top_p"} and 0 < values["top_p"] < 1 else None
    head = (
        f"Completions are sampled with {listed(cuts.values())}, and log-probs are those of the whole distribution: "
        "tokens that are left out are never sampled"
    )
    if weight is None or is_raw:
        why = "no weight makes up for it" if weight is None else f"{weight.said} does not see it"
        return WARNING, (
            f"{head}, and {why}. The mean of ∇log π over what is sampled is then ∇log of the mass that is kept, not 0: "
            "an advantage that all answers share moves probability to the tokens that are kept."
        )
    head += ". The engine's log-probs are those of the rest"
    between = f", from {top:g} to 1" if top else ""
    if weight.level == "token":
        dropped = f" Where it is below {weight.least:g}, the token is dropped." if weight.least and weight.masks else ""
        return WARNING, (
            f"{head}, so that the weight of a token ({weight.said}) has the mass that is kept there as a factor"
            f"{between}.{dropped}"
        )
    if weight.level == "answer":
        least = f": {top:g}^T at least for T tokens, {top**100:.0e} for 100" if top else ", which falls with its length"
        beyond = ""
        if weight.least:
            beyond = f" Below {weight.least:g} {'it is dropped' if weight.masks else f'it counts {weight.least:g}'}."
        return ERROR, (
            f"{head}, so that the weight of an answer ({weight.said}) has the mass that is kept at each of its tokens "
            f"as a factor{least}.{beyond}"
        )
    lost = weight.masks and bool(weight.least) and (top is None or top < weight.least)
    dropped = f" Answers where that is below {weight.least:g} are dropped." if lost else ""
    return (ERROR if lost else WARNING), (
        f"{head}, so that the geometric mean of an answer's ratios ({weight.said}) has that of the masses that are "
        f"kept as a factor{between}.{dropped}"
    )


def _of_bends(said: str, weight: EngineWeight | None, is_raw: bool) -> str:
    head = f"Completions are sampled with {said}, not from the distribution whose log-probs the trainer has"
    if weight is None:
        return f"{head}, and no weight corrects for it."
    if is_raw:
        return f"{head}, and {weight.said} does not see it: the engine's log-probs are of that one too."
    product = ", and an answer's weight is the product of them" if weight.level == "answer" else ""
    return f"{head}: every weight trainer/engine ({weight.said}) differs from 1 by it{product}."


# ---------------------------------------------------------------- numbers that are probably slips


def mean_bound(length: int, most: float, deviation: float = DEVIATION) -> float:
    """Returns an upper bound of `E[min(w, most)]`, of the product w of `length` ratios, over what the engine samples.

    `min(w, C) ≤ √(C·w)`, and `E[√w]` is a product of the Bhattacharyya coefficients of the tokens: √C·b^length, if each
    is at most b. Log ratios that are normal with this deviation have b = exp(-deviation²/8).
    """
    return min(1.0, math.sqrt(most) * math.exp(-length * deviation**2 / 8))


def answer_weight(weight: EngineWeight | None, length: int, change: str) -> Iterator[Finding]:
    """Warns of a weight of whole answers. `length`: the tokens of the longest; `change`: what to write instead."""
    if weight is None or weight.level != "answer":
        return
    per_token = round(8 / DEVIATION**2)
    given = f"b = exp(-s²/8) for normal log ratios of deviation s. With s = {DEVIATION:g} it is exp(-T/{per_token})"
    lengths = (length,) if mean_bound(length, weight.most or 1.0) < 0.9 else (length, LONG)  # short ones show nothing
    bounds = listed(f"{mean_bound(n, weight.most or 1.0):.2g} for T = {n}" for n in lengths)
    if weight.most is None:
        what = (
            "it has no upper bound: its mean is 1, and the mean of its root at most b^T for T tokens, so that few "
            f"answers carry the gradient. b is the largest Bhattacharyya coefficient of trainer and engine at a token, "
            f"{given}, which is {bounds}"
        )
    else:
        what = (
            f"{'it is 0 above' if weight.masks else 'it is cut at'} {weight.most:g}, so that it shrinks with the "
            f"answer's length: its mean is at most √{weight.most:g}·b^T for T tokens, and at most 1. b is the largest "
            f"Bhattacharyya coefficient of trainer and engine at a token, {given}: at most {bounds}"
        )
    if weight.least is not None:
        beyond = "answers below it are dropped" if weight.masks else "long answers have this weight"
        what += f". The lower bound is {weight.least:g}: {beyond}"
    yield Finding(WARNING, f"{weight.said}: an answer's weight is the product of its tokens' ratios; {what}.", change)


def sequence_clip(said: str, low: float, high: float, change: str) -> Iterator[Finding]:
    """Warns of bounds `1 - low`, `1 + high` of an answer's mean ratio that are as wide as those of a token's ratio."""
    if max(low, high) <= WIDE:
        return
    times = max(low / GSPO[0], high / GSPO[1])
    yield Finding(
        WARNING,
        f"{said}: the clip bounds the geometric mean of an answer's ratios, which lies much nearer to 1 than one "
        f"ratio. The bounds are about {times:.0f} times those of GSPO ({GSPO[0]:g} and {GSPO[1]:g}), and hardly "
        "ever bind.",
        change,
    )
