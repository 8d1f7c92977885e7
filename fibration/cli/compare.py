"""`fibration compare`: whether two specs are the same loss, or which shipped loss a spec is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fibration.configs.files import config_of, deciding, parts_of
from fibration.configs.findings import NOTE, Finding
from fibration.configs.options import TrainerLoss, flattened
from fibration.configs.specs import Spec, as_specs
from fibration.errors import FibrationError, ParameterError, SpecError, listed
from fibration.language.fixed import at_defaults
from fibration.language.hierarchy import Hierarchy
from fibration.language.report import Options, Report
from fibration.laws.budget import Budget
from fibration.laws.equivalent.decide import STATEMENT, Comparison, Comparisons, equivalent
from fibration.laws.equivalent.matching import match_by_role
from fibration.laws.equivalent.neighbours import Neighbour, nearest
from fibration.laws.verify import OUT_OF_TIME
from fibration.printing.law_table import without_law_notes
from fibration.printing.reports import Outcome, loss_quietly

FROM_ADVANTAGES = "Compared are losses of advantages: '{}' makes them of rewards, {}, and '{}' is given them."
MOST = 3  # nearest losses that are listed


@dataclass(frozen=True)
class Settings:
    """The options of a comparison."""

    when: Sequence[str] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    match: Mapping[str, str] = field(default_factory=dict)
    at_defaults: bool = False
    ignore_advantages: bool = False
    timeout: float | None = None


def compare(words: Sequence[str], with_all: bool, settings: Settings) -> list[Outcome]:
    """The outcome of a comparison, named after the first spec. An error is named after the spec that causes it.

    `words`: two SPECs, or one with `with_all`. The parameters of a trainer's config have the config's numbers, unless
    `settings` says more. If only one of the two makes its advantages of rewards, and is a config, then what they do
    with advantages is compared.
    """
    specs = as_specs(words)
    _check([spec.name for spec in specs], with_all, settings)
    blamed = first = specs[0].name
    try:
        losses = []
        for spec in specs:
            blamed = spec.name
            losses.append(loss_quietly(spec))
        blamed = first
        several = len({spec.trainer for spec in specs}) < len(specs)
        names = [spec.trainer and (str(spec) if several else spec.trainer) for spec in specs]
        around = [x for loss, name in zip(losses, names, strict=True) for x in _around(loss, name)]
        if with_all:
            found = _with_all(losses[0].hierarchy, words, settings)
            return [Outcome(first, report=found, asked="compare", beside=(*around,))]
        from_configs = [bool(spec.trainer) for spec in specs]
        one, other, note = _of_advantages(losses[0].hierarchy, losses[1].hierarchy, from_configs)
        one, other, parameters = _with_numbers((one, other), from_configs, settings)
        report = equivalent(
            one, other, settings.when, parameters=parameters, match=settings.match,
            at_defaults=settings.at_defaults, ignore_advantages=settings.ignore_advantages, timeout=settings.timeout,
        )  # fmt: skip
        decided, change = _options(specs)
        report = replace(report, verdicts=tuple(replace(v, remedy=change or v.remedy) for v in report.verdicts))
        return [Outcome(first, report=report, asked="compare", beside=(*note, *around), options=decided)]
    except FibrationError as error:
        return [Outcome(blamed, error=error, asked="compare")]


def _check(named: Sequence[str], with_all: bool, settings: Settings) -> None:
    first = named[0]
    if len(named) > 2:
        raise SpecError(
            f"{len(named)} SPECs are compared",
            required="two SPECs",
            found=listed(f"'{name}'" for name in named),
            remedy=f"fibration compare {first} {named[1]}",
        )
    if len(named) == 1 and not with_all:
        raise SpecError(
            f"'{first}' is compared with nothing",
            required="a second SPEC, or --with-all for the shipped losses",
            remedy=f"fibration compare {first} --with-all; or fibration compare {first} SPEC",
        )
    if len(named) == 2 and with_all:
        raise SpecError(
            f"--with-all compares '{first}' with every shipped loss, and '{named[1]}' is one SPEC",
            required="a second SPEC or --with-all",
            remedy="leave one of them out",
        )
    given = {"--when": settings.when, "--param": settings.parameters, "--match": settings.match}
    found = [name for name, value in {**given, "--at-defaults": settings.at_defaults}.items() if value]
    if with_all and found:
        raise SpecError(
            f"--with-all takes no {found[0]}",
            required="--ignore-advantages or --timeout, since shipped losses have different names",
            found=", ".join(found),
            remedy="compare with one shipped loss: name it in the place of --with-all",
        )


def _with_all(h: Hierarchy, words: Sequence[str], settings: Settings) -> Report:
    """The report on a loss beside all shipped losses: proved if it is one of them, else with the nearest ones."""
    budget, found = Budget(settings.timeout), list[Neighbour]()
    given = " with advantages given to both" if settings.ignore_advantages else ""
    subject = f"any shipped loss{given}"
    if not budget.allows(lambda: found.extend(nearest(h, ignore_advantages=settings.ignore_advantages))):
        late = f"{OUT_OF_TIME} after {budget.seconds:g} s"
        more = f"give it more: --timeout {10 * budget.seconds:g}"
        return Comparisons(
            h, (Comparison("equivalent", subject, "undecided", "", STATEMENT, late, more, out_of_time=True),)
        )
    same = [n for n in found if n.is_same]
    if same:
        names = listed(str(n).replace("`", "'") for n in same)
        return Comparisons(h, (Comparison("equivalent", f"{names}{given}", "proved", "part by part"),))
    told = "\n".join(map(str, found[:MOST]))
    remedy = f"a batch that tells them apart: fibration compare {' '.join(words)} {found[0].name if found else 'grpo'}"
    remedy += " --ignore-advantages" * settings.ignore_advantages
    near = f"nearest: {told}" if found else "no shipped loss is near: each differs in more than three parts"
    return Comparisons(h, (Comparison("equivalent", subject, "undecided", "", STATEMENT, near, remedy),))


def _options(specs: Sequence[Spec]) -> tuple[tuple[Options, Options], str]:
    """The options that decide the parts of each config, in words; and those that make the first config the second."""
    one, other = (flattened(config_of(spec.name, spec.overrides), True) if spec.trainer else None for spec in specs)
    alike = specs[0].trainer == specs[1].trainer
    found: list[dict[str, list[str]]] = []
    for spec, own, beside in zip(specs, (one, other), (other, one), strict=True):
        found.append({} if own is None else deciding(spec.name, own, beside if alike else None))
    words = [
        {part: [_word(option, own or {}) for option in options] for part, options in of.items()}
        for of, own in zip(found, (one, other), strict=True)
    ]
    change = ""
    if one is not None and other is not None and alike:
        changes = dict.fromkeys(option for options in found[1].values() for option in options)
        written = {option: other[option] for option in changes if option in other}
        kept = {option: value for option, value in one.items() if option not in changes}
        if changes and parts_of(specs[0].name, {**kept, **written}) == parts_of(specs[1].name, other):
            gone = [option for option in changes if option not in written]
            steps = [f"write {' '.join(_word(option, written) for option in written)}"] if written else []
            steps += [f"leave out {listed(gone)}"] if gone else []
            change = f"in {specs[0].name} {' and '.join(steps)}: then both declare the same"
    return (words[0], words[1]), change


def _word(option: str, options: Mapping[str, Any]) -> str:
    if option not in options:
        return f"{option} (its default)"
    value = options[option]
    return f"{option}={value if isinstance(value, str) else json.dumps(value)}"


def _with_numbers(
    pair: tuple[Hierarchy, Hierarchy], from_configs: Sequence[bool], settings: Settings
) -> tuple[Hierarchy, Hierarchy, Mapping[str, Any]]:
    """The two losses, and numbers of their parameters: two configs have their own, one has its numbers for both.

    A parameter of the other loss that is matched with a config's has that one's number.
    """
    parameters = dict(settings.parameters)
    named = {*parameters, *(value for value in parameters.values() if isinstance(value, str))}
    if all(from_configs):
        one, other = (at_defaults(h, without=named) for h in pair)
        return one, other.replace(name=f"{other.name}_2") if one.name == other.name else other, parameters
    numbers = {
        name: p.default
        for h, is_config in zip(pair, from_configs, strict=True)
        for name, p in h.parameters.items()
        if is_config and name not in named and isinstance(p.default, float | int)
    }
    pairs = match_by_role(*pair, parameters, settings.match).pairs
    partners = {**dict(pairs), **{b: a for a, b in pairs}}
    numbers |= {partners[name]: value for name, value in numbers.items() if name in partners}
    return *pair, {**numbers, **parameters}


def _of_advantages(
    one: Hierarchy, other: Hierarchy, configs: Sequence[bool]
) -> tuple[Hierarchy, Hierarchy, tuple[Finding, ...]]:
    """Two hierarchies that both make advantages of rewards, or both do not, and a sentence if one was changed."""
    pair = [one, other]
    for k in (0, 1):
        h, beside = pair[k], pair[1 - k]
        if configs[k] and h.advantages is not None and beside.advantages is None:
            pair[k] = h.replace(advantages=None, gives_up={})
            return pair[0], pair[1], (Finding(NOTE, FROM_ADVANTAGES.format(h.name, h.advantages, beside.name)),)
    return one, other, ()


def _around(loss: TrainerLoss, name: str) -> list[Finding]:
    """What is found about a config, each sentence after a name: the trainer's, or the SPEC's of two of one trainer."""
    found = without_law_notes(loss)
    return [x if x.sentence.startswith(name) else replace(x, sentence=f"{name}: {x.sentence}") for x in found]


def matches(given: Sequence[str], numbers: Callable[[Sequence[str]], dict[str, Any]]) -> dict[str, Any]:
    """Reads `NAME=NAME` (equal parameters), `NAME=VALUE` (a fixed one) and `NAME=FORMULA` (in the other's)."""
    found: dict[str, Any] = {}
    for text in given:
        name, _, value = (part.strip() for part in text.partition("="))
        found |= {name: value} if value and not value.startswith("{") and not _is_number(value) else numbers([text])
    return found


def names(given: Sequence[str]) -> dict[str, str]:
    """Reads `NAME=NAME` of `--match`. Raises ParameterError for anything else."""
    found: dict[str, str] = {}
    for text in given:
        name, _, other = (part.strip() for part in text.partition("="))
        if not (name.isidentifier() and other.isidentifier()):
            raise ParameterError(
                f"--match {text!r} cannot be read",
                required="NAME=NAME: a name of the first loss, and one of the second",
                remedy="for example --match epsilon_low=eps_lo; numbers and formulas are for --param",
            )
        if name in found:
            raise ParameterError(
                f"--match gives '{name}' twice",
                required="one partner for each name",
                found=f"{found[name]} and {other}",
            )
        found[name] = other
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
