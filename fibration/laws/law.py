"""What a law is: a statement, and a procedure that decides it for one hierarchy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from fibration.errors import FibrationError
from fibration.language.declared import WORDS
from fibration.language.exact import TooLarge
from fibration.language.expressions import ExpressionTooLarge
from fibration.language.report import LEFT, Cause, Evidence, Status, Verdict
from fibration.laws.remedies import Fix, Offers, Otherwise
from fibration.laws.subject import Subject

INTERNAL_ERROR = "internal error"
FILE_AN_ISSUE = "this is a defect of fibration: please file an issue with this hierarchy in its issue tracker"
log = logging.getLogger("fibration")


def internal_error(where: str, error: Exception) -> str:
    """One line for the report about an exception in `where`. Logs the traceback at level DEBUG."""
    log.debug("an internal error in %s", where, exc_info=error)
    text = " ".join(str(error).split())
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{INTERNAL_ERROR}: {said if len(said) <= 200 else said[:197] + '...'}"


@dataclass(frozen=True)
class Proved:
    """The result of a proof that succeeded, for batches of all sizes. `argument` is the reason, in one line."""

    argument: str


@dataclass(frozen=True)
class Unknown:
    """The result of a proof that failed. It refutes nothing: the law may hold.

    `reason` is one line for the report. A proof without a reason returns None instead.
    """

    reason: str


@dataclass(frozen=True)
class Decision:
    """The decision on one subject. `required` is what the subject lacks, if that is not the law's whole statement.

    `fault` names the way in which a law of several levels fails. A reason to give up the law covers one fault.
    """

    subject: str
    status: Status
    argument: str = ""
    found: str = ""
    remedy: str | Offers = ""
    witness: Evidence | None = None
    required: str = ""
    cause: Cause | None = None
    internal_error: bool = False
    fault: str = ""


def proved(subject: str, argument: str) -> Decision:
    return Decision(subject, "proved", argument)


def refuted(
    subject: str, found: str, remedy: str | Offers, witness: Evidence | None = None, required: str = ""
) -> Decision:
    return Decision(subject, "refuted", "", found, remedy, witness, required)


def undecided(subject: str, found: str, remedy: str | Offers, required: str = "") -> Decision:
    return Decision(subject, "undecided", "", found, remedy, None, required)


def unproved(subject: str, found: str, remedy: str | Offers, witness: Evidence | None, required: str = "") -> Decision:
    """Refuted if there is a witness; else undecided."""
    return (
        refuted(subject, found, remedy, witness, required) if witness else undecided(subject, found, remedy, required)
    )


def following(decision: Decision, failure: Verdict | None) -> Decision:
    """A decision with an earlier failure as its cause.

    It gets no cause if `failure` is None, or if the decision is refuted and the failure is only undecided.
    """
    if failure is None or (decision.status == "refuted" and failure.status == "undecided"):
        return decision
    return replace(decision, cause=Cause(failure.law, failure.subject))


Decide = Callable[[Subject], Iterator[Decision]]


@dataclass(frozen=True)
class Law:
    """A law. `decisions` yields one decision per subject. If it fails and is `needed_by_all`, no later law is decided.

    `remainder` decides what the law still requires of subjects for which it is given up.
    """

    name: str
    statement: str
    decisions: Decide
    may_be_given_up: bool = True
    needed_by_all: bool = False
    remainder: Decide | None = None

    def decide(self, subject: Subject) -> Iterator[Verdict]:
        """One verdict per subject, in the name of the law."""
        for d in self._decided(self.decisions, subject):
            yield self._verdict(d, self._offered(d, subject, self.decisions))

    def decide_rest(self, subject: Subject, given_up: Collection[Verdict]) -> Iterator[Verdict]:
        """One verdict on the remainder per subject of `given_up`, but for a failure with the fault that is given up."""
        faults = {v.subject: v.fault for v in given_up}
        for d in self._decided(self.remainder, subject) if self.remainder and faults else ():
            is_given_up = bool(d.fault) and d.fault == faults.get(d.subject)
            if (d.subject in faults and not is_given_up) or d.subject == "hierarchy":
                offered = self._offered(d, subject, self.remainder or self.decisions)
                yield self._verdict(replace(d, subject=LEFT + d.subject), offered)

    def _offered(self, d: Decision, subject: Subject, decide: Decide) -> str:
        """The remedy in words: the fixes with which the law holds, and the advice."""
        offers = (d.remedy,) if isinstance(d.remedy, str) else d.remedy
        held = [o for o in offers if isinstance(o, Fix) and self._holds(o, d.subject, subject.before, decide)]
        said = [o if isinstance(o, str) else o.words for o in offers if isinstance(o, str) or o in held]
        text = "; or ".join(dict.fromkeys(w for w in said if w and not (held and isinstance(w, Otherwise))))
        named = [p for p in dict.fromkeys(WORDS.findall(text)) if p in subject.hierarchy.parameters]
        return text + f" (parameter{'s' * (len(named) > 1)}: {', '.join(named)})" * bool(named)

    def _holds(self, fix: Fix, topic: str, before: Sequence[Law], decide: Decide) -> bool:
        """Whether what is to decide holds of the hierarchy with a fix; the laws `before` are decided first."""
        try:
            mended = Subject(fix.mended(), [])
        except FibrationError:
            return False
        for law in before:
            mended.verdicts += [law._verdict(d) for d in law._decided(law.decisions, mended)]
        return all(d.status == "proved" for d in self._decided(decide, mended) if d.subject in (topic, "hierarchy"))

    def _verdict(self, d: Decision, remedy: str = "") -> Verdict:
        required = "" if d.status == "proved" else d.required or self.statement
        return Verdict(
            self.name, d.subject, d.status, d.argument, required, d.found, remedy, d.witness, cause=d.cause,
            internal_error=d.internal_error, fault=d.fault,
        )  # fmt: skip

    def _decided(self, decide: Decide, subject: Subject) -> Iterator[Decision]:
        """The decisions. Numbers too large to compute with, or an exception, end them with one that is undecided."""
        try:
            yield from decide(subject)
        except TooLarge as error:
            remedy = "bound what grows, as exp(clip(x, -20, 20)) does"
            yield undecided("hierarchy", f"{error}, with which no counterexample is computed", remedy)
        except ExpressionTooLarge as error:
            yield undecided("hierarchy", f"{error.what}: one that the law makes of the loss's formulas", error.remedy)
        except MemoryError:  # a limit of the machine, not a defect
            raise
        except Exception as error:
            found = internal_error(f"the law '{self.name}'", error)
            yield replace(undecided("hierarchy", found, FILE_AN_ISSUE), internal_error=True)
