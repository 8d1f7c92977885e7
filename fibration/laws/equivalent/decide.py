"""Decides whether two losses give every token of every batch the same coefficient `c_i = ∂J/∂log π_i`.

It searches a few small batches for a difference, then tries to prove equality for all sizes, then searches many more.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from fibration.errors import FibrationError, LawError, SpecError, listed
from fibration.language.atoms import advantage
from fibration.language.conditions import Equal, on_policy
from fibration.language.fixed import at_defaults as with_defaults
from fibration.language.hierarchy import FOUNDATIONS, Hierarchy
from fibration.language.pairs import Given, Pair, check_comparable, check_hierarchies, pair
from fibration.language.report import BUDGET, Part, Report, Verdict
from fibration.language.roles import declared_parts
from fibration.language.traversal import atoms
from fibration.laws.batches.concrete import Witness
from fibration.laws.budget import Budget
from fibration.laws.catalogue import LAWS
from fibration.laws.equivalent.matching import Matched, match_by_role, match_by_trial
from fibration.laws.equivalent.neighbours import are_same, times
from fibration.laws.equivalent.same_loss import NoBatchError, check_conditions, same_loss
from fibration.laws.equivalent.search import FEW, MANY, difference, has_batches, is_evaluated
from fibration.laws.law import FILE_AN_ISSUE, Proved, internal_error
from fibration.laws.subject import Subject
from fibration.laws.verify import OUT_OF_TIME

STATEMENT = "the same coefficients c_i = ∂J/∂log π_i on every batch"
MOST_FACTOR = 1000  # a number that tells two losses apart is at most this, and so is its divisor
CLOSE = Fraction(1, 10**12)
REMEDY = (
    "make them alike in these parts; or ask for fewer batches with when=... (--when), match names with match={...} "
    "(--match), and fix parameters with parameters={...} (--param)"
)


@dataclass(frozen=True)
class Comparison(Verdict):
    """The verdict on two losses. `subject` names the second loss, its fixed parameters and the conditions.

    `parts`: what the two declare, part by part, unless they are the same. `factor`: the number that all coefficients of
    the second are multiplied by in the first, if this is proved.
    """

    parts: tuple[Part, ...] = ()
    factor: Fraction | None = None

    def to_dict(self) -> dict[str, Any]:
        differ = [{"part": p.name, "first": p.first, "second": p.second} for p in self.parts if p.differs]
        known = {"factor": str(self.factor or ""), "parts": differ}
        return {**super().to_dict(), **{key: value for key, value in known.items() if value}}

    def error(self, name: str, so_too: str = "") -> LawError:
        plain = super().error(name, so_too)
        verb = "is not the same loss as" if self.status == "refuted" else "could not be shown to be the same loss as"
        return LawError(
            f"'{name}' {verb} {self.subject}", required=plain.required, found=plain.found, remedy=plain.remedy
        )


class Comparisons(Report):
    """The report on a comparison. `hierarchy` is the first loss; the one verdict is a `Comparison`."""

    @property
    def outcome(self) -> str:
        (verdict,) = self.verdicts
        said = {"proved": "the same loss as", "refuted": "not the same loss as"}
        return f"{said.get(verdict.status, 'not shown to be the same loss as')} {verdict.subject}"


def equivalent(
    first: Hierarchy,
    second: Hierarchy,
    when: object = None,
    *,
    parameters: Given | None = None,
    match: Mapping[str, str] | None = None,
    at_defaults: bool = False,
    ignore_advantages: bool = False,
    timeout: float | None = BUDGET,
) -> Report:
    """Decide whether two losses are the same for batches of all sizes. Returns a `Report` with one verdict.

    Two losses are the same if every token has the same coefficient `c_i = ∂J/∂log π_i` in both. The gradient of a loss
    is `-Σ c_i ∇log π_i`. So equal coefficients give equal gradients for any model. The status is one of:

    - *proved*: the coefficients are equal on every batch.
    - *refuted*: a coefficient differs. The verdict has the smallest batch found, with both coefficients. They are exact
      fractions, or have fifty digits where a formula has an exponential, a logarithm or a root.
    - *undecided*: no proof and no such batch was found, the time was over, or the comparison raised an exception. After
      an exception the report asks for an issue.

    Levels may differ in names, number and shape. Tokens, rows, policies and attributes are matched by name; tokens and
    rows also under two names. Parameters are matched by name, then by role. The verdict's subject lists each match of
    two names, and `when` uses the first loss's names.

    - `when`: one or several conditions, as objects or text. Only batches that meet all of them are compared. A
      condition is a comparison that holds at every token (`advantage >= 0`), `equal(advantage, on=trajectory)`,
      `equal(count(token, over=trajectory))`, `one(domain)`, `same(old, rollout)` or `on_policy`. If the gate of a
      coarser stratum reads the advantage, each element of that stratum has one advantage.
    - `parameters`: matches or fixes parameters. A parameter of both losses has the same value in both, for each element
      of its `on=`, or one for the batch. `{"epsilon": "eps_low"}`
      matches two names. `{"bound": "1 + epsilon"}` writes a parameter in parameters of the other loss.
      `{"C": math.inf}` fixes a parameter: here a budget that never binds.
    - `match`: names of one thing, `{"epsilon_low": "eps_lo", "reference": "teacher"}`: parameters, strata, policies and
      attributes.
    - `at_defaults`: each loss has its own defaults as constants, but for the parameters in `parameters` and `match`.
    - `ignore_advantages`: compares the losses as functions of given advantages. How a loss computes advantages from
      rewards does not count.
    - `timeout`: seconds. None is no limit.

    Raises SpecError and ParameterError if the two hierarchies do not match, if a match of parameters is not unique, if
    no batch meets `when`, or if a foundation of a hierarchy fails: `structure`, `locality`, a law of kernels, or
    `objective`.
    """
    check_hierarchies(first, second)
    budget, given = Budget(timeout), dict(parameters or {})
    one, other = (h.replace(advantages=None) if ignore_advantages else h for h in (first, second))
    if at_defaults:
        said = {*given, *(v for v in given.values() if isinstance(v, str)), *(match or {}), *(match or {}).values()}
        one, other = (with_defaults(h, said) for h in (one, other))
    matched = match_by_role(one, other, given, match or {})
    check_comparable(matched.first, matched.second)
    asked = _Asked(matched, when, at_defaults, ignore_advantages)
    if not all(matched.alone):  # else the conditions can be read only once the parameters are matched
        asked.pair = asked.paired()
    found: list[Comparison] = []
    if not budget.allows(lambda: found.append(asked.decide())):
        late = f"{OUT_OF_TIME} after {budget.seconds:g} s"
        more = f"give it more: timeout={10 * budget.seconds:g}, or --timeout {10 * budget.seconds:g}"
        found = [Comparison("equivalent", asked.subject, "undecided", "", STATEMENT, late, more, out_of_time=True)]
    return Comparisons(first, tuple(found))


@dataclass
class _Asked:
    """A comparison: two hierarchies with matched names, and how they are compared."""

    matched: Matched
    when: object
    at_defaults: bool
    ignores_advantages: bool
    pair: Pair | None = None

    def decide(self) -> Comparison:
        found = next(filter(None, map(_broken_foundation, (self.matched.first, self.matched.second))), "")
        if found:
            _broken_foundation.cache_clear()  # an internal error is not kept
        try:
            if not found:
                if self.pair is None:
                    self.matched = match_by_trial(self.matched, self.when)
                    self.pair = self.paired()
                return self._told(_compare(self.pair, self.subject), self.pair)
        except Exception as error:
            if isinstance(error, (NoBatchError if self.pair else FibrationError, MemoryError)):
                raise  # an error of the caller, or of the machine
            found = internal_error("a comparison" if self.pair else "a match of parameters", error)
        return Comparison(
            "equivalent", self.subject, "undecided", "", STATEMENT, found, FILE_AN_ISSUE, internal_error=True
        )

    def paired(self) -> Pair:
        return pair(self.matched.first, self.matched.second, self.when, self.matched.given)

    def _told(self, found: Comparison, both: Pair) -> Comparison:
        """The verdict with what a reader should know: how the declarations differ, and on what the proof rests."""
        first, second = self.matched.first, self.matched.second
        if found.status != "proved":
            found = replace(found, parts=declared_parts(first, second))
        if found.status == "refuted":
            factor = self._factor(found.counterexample) if isinstance(found.counterexample, Witness) else None
            said = [
                f"{p.name}: {p.first} against {p.second}" for p in found.parts if p.differs and p.first and p.second
            ]
            told = [f"every coefficient is {factor} times that of '{second.name}' (proved)"] if factor else []
            told += [f"the declarations differ in {'; '.join(said)}"] if said else []
            return replace(found, found="; ".join(told), factor=factor)
        notes = [n for n in (_one_advantage(both), _defaults(first, second, self.matched.given)) if n]
        if found.status == "proved":
            return replace(found, argument=". ".join([found.argument, *notes]))
        return found

    def _factor(self, witness: Witness) -> Fraction | None:
        """The number that tells the two losses apart, if that is all, and it is proved."""
        mine, yours = (witness.values[key] for key in ("coefficients", "other_coefficients"))
        factor = next(
            ((c / d).limit_denominator(MOST_FACTOR) for c, d in zip(mine, yours, strict=True) if d), Fraction()
        )
        if not 0 < factor <= MOST_FACTOR or any(abs(c - factor * d) > CLOSE for c, d in zip(mine, yours, strict=True)):
            return None
        first, second = self.matched.first, self.matched.second
        same = are_same(lambda: pair(first, times(second, factor), self.when, self.matched.given))
        return factor if same else None

    @property
    def subject(self) -> str:
        both = self.pair
        fixed = dict(both.fixed) if both else {}
        said = [*self.matched.words, *(f"{n} = {v if isinstance(v, str) else f'{v:g}'}" for n, v in fixed.items())]
        said += ["all parameters at their defaults"] if self.at_defaults else []
        said += ["advantages given to both"] if self.ignores_advantages else []
        subject = f"'{self.matched.second.name}'" + (f" with {', '.join(said)}" if said else "")
        if both and both.when:
            subject += f" when {' and '.join(map(repr, both.when))}"
            others = [p.name for p in both.policies]
            if on_policy in both.when and others:
                subject += f", which makes {listed(others)} the current policy too"
        return subject


def _one_advantage(both: Pair) -> str:
    """A sentence on the batches that a coarser gate needs: one advantage on each of its elements."""
    equal_over = {c.on for c in both.when if isinstance(c, Equal) and c.value == advantage}
    readers = {
        s.name: h.name
        for h in both
        for s in h.order
        if s not in h.leaves and s not in equal_over and advantage in atoms(h.gate(s))
    }
    said = (f"one advantage per {s}, because a gate of '{name}' reads it" for s, name in readers.items())
    return f"The batches compared have {listed(said)}" if readers else ""


def _defaults(first: Hierarchy, second: Hierarchy, given: Given) -> str:
    """A sentence on the parameters of one name whose defaults differ: the comparison gives them one value."""
    shared = (n for n in first.parameters if n in second.parameters and n not in given)
    apart = [
        f"{n} is {a:g} in '{first.name}' and {b:g} in '{second.name}'"
        for n in shared
        for a, b in [(first.parameters[n].default, second.parameters[n].default)]
        if isinstance(a, float | int) and isinstance(b, float | int) and a != b
    ]
    return f"A parameter has one value in both, whatever its defaults: {listed(apart)}" if apart else ""


def _compare(both: Pair, subject: str) -> Comparison:
    check_conditions(both)
    if (witness := difference(both, FEW)) is None:
        proof = same_loss(both)
        if isinstance(proof, Proved):
            return Comparison("equivalent", subject, "proved", proof.argument)
        if not (is_evaluated(both) and has_batches(both)) or (witness := difference(both, MANY)) is None:
            return Comparison("equivalent", subject, "undecided", "", STATEMENT, proof.reason, REMEDY)
    return Comparison("equivalent", subject, "refuted", "", STATEMENT, "", REMEDY, witness)


@functools.lru_cache(maxsize=256)
def _broken_foundation(h: Hierarchy) -> str:
    """The text for the verdict if a foundation raised an exception. Raises SpecError if a foundation fails.

    Without reflecting kernels or defined counts, coefficients mean nothing.
    """
    subject = Subject(h, [])
    for law in FOUNDATIONS:
        subject.verdicts += list(LAWS[law].decide(subject))
        failure = subject.first_failure(law)
        if failure is not None and failure.internal_error:
            return failure.found
        if failure is not None:
            error = failure.error(h.name)
            raise SpecError(error.what, required=error.required, found=error.found, remedy=error.remedy)
    return ""
