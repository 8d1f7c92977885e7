"""Decides whether two losses give every token of every batch the same coefficient `c_i = ∂J/∂log π_i`.

It searches a few small batches for a difference, then tries to prove equality for all sizes, then searches many more.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from fibration.errors import LawError, SpecError, listed
from fibration.language.atoms import advantage
from fibration.language.comparable import declared_differences
from fibration.language.conditions import Equal
from fibration.language.hierarchy import FOUNDATIONS, Hierarchy
from fibration.language.pairs import Given, Pair, pair
from fibration.language.report import BUDGET, Report, Verdict
from fibration.language.traversal import atoms
from fibration.laws import LAWS
from fibration.laws.budget import Budget
from fibration.laws.equivalent.same_loss import NoBatchError, same_loss
from fibration.laws.equivalent.search import FEW, MANY, difference
from fibration.laws.law import FILE_AN_ISSUE, Proved, internal_error
from fibration.laws.subject import Subject
from fibration.laws.verify import OUT_OF_TIME

STATEMENT = "the same coefficients c_i = ∂J/∂log π_i on every batch"
REMEDY = (
    "change one of them; or ask for fewer batches with when=... (--when), and match or fix parameters with "
    "parameters={...} (--param)"
)


class Comparison(Verdict):
    """The verdict on two losses. `subject` names the second loss, its fixed parameters and the conditions."""

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

    Levels may differ in names, number and shape. Tokens, rows, policies and attributes are matched by name.

    - `when`: one or several conditions, as objects or text. Only batches that meet all of them are compared. A
      condition is a comparison that holds at every token (`advantage >= 0`), `equal(advantage, on=trajectory)`,
      `equal(count(token, over=trajectory))`, `one(domain)`, `same(old, rollout)` or `on_policy`. If the gate of a
      coarser stratum reads the advantage, each element of that stratum has one advantage.
    - `parameters`: matches or fixes parameters. A parameter of both losses has one value. `{"epsilon": "eps_low"}`
      matches two names. `{"bound": "1 + epsilon"}` writes a parameter in parameters of the other loss.
      `{"C": math.inf}` fixes a parameter: here a budget that never binds.
    - `timeout`: seconds. None is no limit.

    Raises SpecError and ParameterError if the two hierarchies do not match, if no batch meets `when`, or if a
    foundation of a hierarchy fails: `structure`, `locality`, a law of kernels, or `objective`.
    """
    both, budget, found = pair(first, second, when, parameters), Budget(timeout), list[Comparison]()
    if not budget.allows(lambda: found.append(_decide(both))):
        late = f"{OUT_OF_TIME} after {budget.seconds:g} s"
        more = f"give it more: timeout={10 * budget.seconds:g}, or --timeout {10 * budget.seconds:g}"
        found = [Comparison("equivalent", _subject(both), "undecided", "", STATEMENT, late, more, out_of_time=True)]
    if found[0].status == "refuted":
        found = [replace(found[0], found=declared_differences(first, second))]
    notes = [note for note in (_one_advantage(both), _defaults(first, second, parameters or {})) if note]
    if found[0].status == "proved":
        found = [replace(found[0], argument=". ".join([found[0].argument, *notes]))]
    return Comparisons(first, tuple(found))


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


def _subject(both: Pair) -> str:
    subject = f"'{both.second.name}'"
    if both.fixed:
        said = (f"{n} = {v if isinstance(v, str) else f'{v:g}'}" for n, v in both.fixed.items())
        subject += f" with {', '.join(said)}"
    if both.when:
        subject += f" when {' and '.join(map(repr, both.when))}"
    return subject


class _Broken(Exception):
    """A foundation raised an exception. The argument is the text for the verdict."""


def _decide(both: Pair) -> Comparison:
    try:
        for h in both:
            _check_foundations(h)
    except _Broken as error:
        return _broken(both, str(error))
    try:
        return _compare(both)
    except (NoBatchError, MemoryError):  # errors of the caller and of the machine
        raise
    except Exception as error:
        return _broken(both, internal_error("a comparison", error))


def _broken(both: Pair, found: str) -> Comparison:
    return Comparison(
        "equivalent", _subject(both), "undecided", "", STATEMENT, found, FILE_AN_ISSUE, internal_error=True
    )


def _compare(both: Pair) -> Comparison:
    subject = _subject(both)
    if (witness := difference(both, FEW)) is None:
        proof = same_loss(both)
        if isinstance(proof, Proved):
            return Comparison("equivalent", subject, "proved", proof.argument)
        if (witness := difference(both, MANY)) is None:
            return Comparison("equivalent", subject, "undecided", "", STATEMENT, proof.reason, REMEDY)
    return Comparison("equivalent", subject, "refuted", "", STATEMENT, "", REMEDY, witness)


@functools.lru_cache(maxsize=256)
def _check_foundations(h: Hierarchy) -> None:
    """Raises if a foundation fails: without reflecting kernels or defined counts, coefficients mean nothing."""
    subject = Subject(h, [])
    for law in FOUNDATIONS:
        subject.verdicts += list(LAWS[law].decide(subject))
        failure = subject.first_failure(law)
        if failure is not None and failure.internal_error:
            raise _Broken(failure.found)
        if failure is not None:
            error = failure.error(h.name)
            raise SpecError(error.what, required=error.required, found=error.found, remedy=error.remedy)
