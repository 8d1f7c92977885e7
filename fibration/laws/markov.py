"""Markov (def:fgh i): every weight of a kernel is defined and never negative."""

from __future__ import annotations

from collections.abc import Iterator

from fibration.language.report import Verdict
from fibration.laws.law import Law
from fibration.laws.proof.branches import Case, TooManyCases, cases
from fibration.laws.proof.signs import Assumptions
from fibration.laws.proof.subject import Subject
from fibration.laws.witness.batches import Witness, rounding, settings
from fibration.laws.witness.fibres import Fibre, weights

STATEMENT = "every weight K(a|b) is defined and at least 0"


def decide(subject: Subject) -> Iterator[Verdict]:
    h = subject.hierarchy
    for f in h.fibrations:
        what = f"kernel {f.name}"
        try:
            assume = subject.at(f.source)
            safe = all(_is_positive(case, assume) for case in cases(f.weight, assume))
        except TooManyCases:
            safe = False
        if safe:
            yield Verdict("markov", what, "proved", f"{f.weight} ≥ 0, since counts and positive attributes are above 0")
            continue
        for concrete, b, fibre in weights(h, (f,)):
            bad = next(((a, w) for _, a, w in fibre if w is None or w < -rounding(f.weight)), None)
            if bad:
                value = "no value" if bad[1] is None else str(bad[1])
                text = f"{concrete.describe(f.target, b)} gives the {_ordinal(fibre, bad[0])} {f.source} {value}"
                yield Verdict(
                    "markov",
                    what,
                    "refuted",
                    "",
                    required=STATEMENT,
                    found=str(f.weight),
                    remedy="use uniform(), or proportional(m) with a count or the total of a positive attribute",
                    counterexample=Witness(
                        text + settings(concrete), concrete, {"element": b, "source": bad[0], "weight": value}
                    ),
                )
                break
        else:
            yield Verdict(
                "markov",
                what,
                "undecided",
                "",
                required=STATEMENT,
                found=f"{f.weight}, whose sign could not be decided",
                remedy="write it as a quotient of sums of positive terms, or declare attributes positive",
            )


def _is_positive(case: Case, assume: Assumptions) -> bool:
    # 0 would be allowed; the normal form divides by the measure, so it is not
    return case.defined(assume) and assume.with_signs(dict(case.signs)).signs(case.sympy()) == {1}


def _ordinal(fibre: Fibre, element: int) -> str:
    place = [a for _, a, _ in fibre].index(element) + 1
    return {1: "first", 2: "second", 3: "third"}.get(place, f"{place}th")


LAW = Law("markov", STATEMENT, decide, may_be_given_up=False)
