"""Run the laws on a hierarchy."""

from __future__ import annotations

from dataclasses import replace

from fibration.language.hierarchy import FOUNDATIONS, Hierarchy
from fibration.language.report import Report, Verdict
from fibration.laws import LAWS
from fibration.laws.facts import facts
from fibration.laws.proof.subject import Subject


def verify(hierarchy: Hierarchy) -> Report:
    """Decide every law, for all sizes at once. Never raises for a wrong hierarchy: see `Report.raise_for_status`.

    If a foundation (structure, locality) fails, the laws that build on it are not asked.
    """
    subject = Subject(hierarchy, [])
    for law in LAWS.values():
        subject.verdicts += list(law.decide(subject))
        if law.foundation and subject.first_failure(law.name):
            return Report(hierarchy, tuple(_account(hierarchy, subject.verdicts)))
    sound = subject.first_failure(*FOUNDATIONS) is None  # a fact about a kernel that does not reflect would mislead
    return Report(hierarchy, tuple(_account(hierarchy, subject.verdicts)), tuple(facts(subject)) if sound else ())


# Giving up first-order agreement covers what it rests on at single gates.
COVERS = {"first_order": ("first_order", "identity")}


def _account(hierarchy: Hierarchy, verdicts: list[Verdict]) -> list[Verdict]:
    """Set the declared exceptions against what was found."""
    result = list(verdicts)
    for law, why in hierarchy.gives_up.items():
        covered = COVERS.get(law, (law,))
        broken = [v for v in verdicts if v.law == law and v.status != "proved"]
        if any(v.law == law for v in verdicts) and not broken:
            result.append(
                Verdict(
                    "given_up",
                    f"law '{law}'",
                    "refuted",
                    "",
                    required="a law is given up only if it is broken",
                    found=f"'{law}' holds",
                    remedy=f"remove '{law}' from gives_up",
                )
            )
        result = [replace(v, given_up=why) if v.law in covered and v.status != "proved" else v for v in result]
    return result


Hierarchy.verify = verify  # the method that users call
