"""Conditions on the batches on which two losses are compared: `when=` of `fibration.equivalent`, `--when` of the CLI.

A comparison in the language, such as `advantage >= 0`, is a condition too: it holds at every token. The text of any
other condition is what it prints; `advantage=trajectory` is short for `equal(advantage, on=trajectory)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from fibration.errors import SpecError, declare, looks_like, suggest
from fibration.language.atoms import (
    BATCH,
    Attribute,
    Count,
    Parameter,
    Stratum,
    Total,
    advantage,
    read_at,
    token_log_ratio,
)
from fibration.language.declared import Declared, LogProb, Policy
from fibration.language.expressions import Expression
from fibration.language.grammar import Invocation, Names, build, called, read
from fibration.language.traversal import atoms

WHOLE = Stratum(BATCH)
REQUIRED = (
    "a comparison that holds at every token, such as advantage >= 0; equal(count(token, over=trajectory)), "
    "equal(advantage, on=trajectory), one(domain), same(old, rollout) or on_policy"
)
_SHORT = re.compile(r"\s*advantage\s*=\s*(\w+)\s*\Z")
_LONE, _EQUATED, _JOINED = (re.compile(e) for e in (r"\s*([\w-]+)\s*\Z", r"\s*(\w+)\s*=\s*(\w+)\s*\Z", r"\band\b"))


class Equal(Declared):
    """The advantage, a count or a total has one value on each element of a stratum, by default on the whole batch."""

    value: Expression
    on: Stratum = WHOLE

    def __repr__(self) -> str:
        return f"equal({self.value}{'' if self.on == WHOLE else f', on={self.on!r}'})"


class One(Declared):
    """The batch has one element of a stratum."""

    stratum: Stratum

    def __repr__(self) -> str:
        return f"one({self.stratum!r})"


class Same(Declared):
    """Two policies have the same log-prob of every token."""

    first: Policy
    second: Policy

    def __repr__(self) -> str:
        return f"same({self.first!r}, {self.second!r})"


class OnPolicy(Declared):
    """All policies are the same, as at the start of every first update: every log ratio is exactly 0."""

    def __repr__(self) -> str:
        return "on_policy"


Condition = Equal | One | Same | OnPolicy | Expression
on_policy = OnPolicy()


def equal(value: Expression, *, on: Stratum = WHOLE) -> Equal:
    """Returns the condition that a value is the same all over each element of `on`, by default all over the batch.

    The value is `advantage`, a count or a total: `equal(advantage, on=trajectory)`.
    """
    counted = isinstance(value, (Count, Total)) and isinstance(value.over, Stratum)
    if not (counted or value == advantage):
        raise SpecError(
            f"equal takes the advantage, or a count or total over a stratum, not {value!r}",
            remedy="equal(advantage, on=trajectory), or equal(count(token, over=trajectory))",
        )
    _check("equal(..., on=)", on)
    return Equal(value=value, on=on)


def one(stratum: Stratum) -> One:
    """Returns the condition that a batch has one element of a stratum: `one(domain)`."""
    _check("one", stratum)
    return One(stratum=stratum)


def same(first: Policy, second: Policy) -> Same:
    """Returns the condition that two policies give every token the same log-prob: `same(old, rollout)`."""
    for given in (first, second):
        if not isinstance(given, Policy):
            raise SpecError(f"same takes two policies, not {given!r}", remedy="same(old, rollout)")
    if first == second:
        raise SpecError(f"{first!r} is the same as itself", required="two policies", remedy="same(old, rollout)")
    return Same(first=first, second=second)


def _check(what: str, stratum: object) -> None:
    if not isinstance(stratum, Stratum):
        found = f"{what} takes a stratum, not {stratum!r}"
        raise SpecError(found, required="a Stratum", remedy=declare("strata", stratum, "trajectory"))


def condition(given: object, names: Names) -> Condition:
    """Returns a condition, from itself or its text; SpecError for anything else.

    `names` maps words to strata, policies, parameters and attributes.
    """
    if isinstance(given, str):
        given = _read(given, names)
    if isinstance(given, (Equal, One, Same, OnPolicy)):
        return given
    if isinstance(given, Expression) and given.is_condition:
        wrong = [a for a in atoms(given) if not _is_known(a)]
        if not wrong:
            return given
        raise SpecError(
            f"the condition {given} reads {wrong[0]}",
            required="the advantage, log-probs, parameters, attributes, and counts and totals over a stratum",
            remedy="name the stratum: count(token, over=trajectory)" if isinstance(wrong[0], (Count, Total)) else "",
        )
    raise SpecError(f"{given!r} is no condition on batches", required=REQUIRED)


def _is_known(atom: Expression) -> bool:
    if isinstance(atom, (Count, Total)):
        return isinstance(atom.over, Stratum)
    return atom in (advantage, token_log_ratio) or isinstance(atom, (LogProb, Parameter, Attribute))


def _read(text: str, names: Names) -> object:
    what = f"the condition {text!r}"
    if short := _SHORT.match(text):
        text = f"equal(advantage, on={short[1]})"
    if text.strip().replace("-", "_") == repr(on_policy):
        return on_policy
    if word := _LONE.match(text):
        raise SpecError(f"{text!r} is no condition", required=REQUIRED, remedy=suggest(word[1], (repr(on_policy),)))
    if word := _EQUATED.match(text):
        meant = f"did you mean advantage={word[2]}?" if looks_like(word[1], "advantage") else ""
        raise SpecError(f"{text!r} is no condition", required=REQUIRED, remedy=meant)
    if _JOINED.search(text):
        raise SpecError(f"{text!r} is two conditions", required="one", remedy="give each: when=[a, b], or --when twice")
    tree = read(text, what)
    made: dict[str, Callable[..., object]] = {"equal": equal, "one": one, "same": same}
    if isinstance(tree, Invocation) and tree.name in made and not tree.methods:
        return called(made[tree.name], tree, {**names, BATCH: WHOLE}, what, REQUIRED)
    return build(tree, {**names, BATCH: WHOLE}, what)


def reads_tokens(given: Condition) -> bool:
    """Returns whether a condition compares log-probs or log ratios of tokens."""
    if not isinstance(given, Expression):
        return False
    return any(isinstance(a, LogProb) or a == token_log_ratio for a in atoms(given))


def policies_of(given: Condition) -> Iterator[Policy]:
    """Yields every policy that a condition names."""
    if isinstance(given, Same):
        yield from (given.first, given.second)
    elif isinstance(given, Expression):
        yield from (a.policy for a in atoms(given, LogProb))


def strata_of(given: Condition) -> Iterator[Stratum]:
    """Yields every stratum that a condition names."""
    if isinstance(given, Equal):
        yield given.on
        yield from _places(given.value)
    elif isinstance(given, One):
        yield given.stratum
    elif isinstance(given, Expression):
        for atom in atoms(given):
            yield from _places(atom)


def _places(atom: Expression) -> Iterator[Stratum]:
    for place in (read_at(atom), getattr(atom, "of", None)):
        if isinstance(place, Stratum):
            yield place
