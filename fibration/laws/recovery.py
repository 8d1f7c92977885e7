"""Recovery (def:fgh ii): `R ∘ F = id` on `r > 0`, decided case by case over the sign of the log ratio."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import sympy

from fibration.language.atoms import Stratum, token_log_ratio
from fibration.language.exact import NoValue
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import exp
from fibration.language.report import Verdict
from fibration.language.sympy_bridge import show, vanishes
from fibration.language.traversal import evaluate
from fibration.laws.law import Law
from fibration.laws.proof.branches import TooManyCases, cases
from fibration.laws.proof.coordinates import X, composed, log_of
from fibration.laws.proof.signs import Assumptions
from fibration.laws.proof.subject import Subject
from fibration.laws.witness.batches import Witness, concretes

STATEMENT = "R(F(r)) = r for every r > 0"


def decide(subject: Subject) -> Iterator[Verdict]:
    h = subject.hierarchy
    arguments = [_proof(composed(h, leaf), subject.at(leaf)) for leaf in h.leaves]
    if all(arguments):
        yield Verdict("recovery", "decomposition", "proved", "; ".join(dict.fromkeys(arguments)))
        return
    leaf, witness = next(((x, w) for x in h.leaves if (w := _search(h, x))), (h.leaves[arguments.index("")], None))
    found = f"R(F(r)) = {composed(h, leaf)}"
    if witness:
        yield Verdict(
            "recovery",
            "decomposition",
            "refuted",
            "",
            required=STATEMENT,
            found=found,
            remedy="divide by the scale in R that F multiplies by: signed_log_ratio(scale), log_ratio(scale)",
            counterexample=witness,
        )
    else:
        yield Verdict(
            "recovery",
            "decomposition",
            "undecided",
            "",
            required=STATEMENT,
            found=found,
            remedy="use signed_log_ratio(scale), log_ratio(scale) or ratio_deviation(scale)",
        )


def _proof(whole: Expression, known: Assumptions) -> str:
    lines = []
    try:
        for sign, word in ((1, "x > 0"), (0, "x = 0"), (-1, "x < 0")):
            assume = known.with_signs({X: frozenset({sign})})
            for case in cases(whole, assume):
                if not case.defined(assume):
                    return ""
                log_ratio = log_of(case.sympy())
                difference = log_ratio - X
                if sign == 0:
                    difference = difference.subs(X, 0)
                if not vanishes(sympy.simplify(difference) if difference.has(sympy.log) else difference):
                    return ""
                lines.append(f"{word}: log R(F(r)) = {show(log_ratio) if sign else '0'}")
    except TooManyCases:
        return ""
    return "; ".join(dict.fromkeys(lines)).replace("token_log_ratio", "x")


def _search(h: Hierarchy, leaf: Stratum) -> Witness | None:
    whole, root = composed(h, leaf), h.roots[0]
    probes = [
        Fraction(n, d)
        for n, d in ((0, 1), (1, 1), (-1, 1), (1, 2), (-1, 2), (3, 1), (-3, 1), (1, 10), (-1, 10), (1, 100), (-1, 100))
    ]
    for tried, concrete in enumerate(concretes(h, [whole])):
        if tried > 200:
            break
        if not concrete.size[leaf]:
            continue
        for x in probes:
            try:
                value = concrete.value(whole, leaf, 0, {token_log_ratio: x})
            except NoValue:
                value = None
            truth = evaluate(exp(token_log_ratio), {token_log_ratio: x})
            if value is None or abs(value - truth) > Fraction(1, 10**30):
                got = "no value" if value is None else f"{float(value):.6g}"
                place = "" if leaf == root else f"in {concrete.describe(root)}, "
                text = f"{place}a {leaf} with log ratio {x} comes back as {got} instead of {float(truth):.6g}"
                return Witness(text, concrete, {"log_ratio": x, "recovered": got})
    return None


LAW = Law("recovery", STATEMENT, decide)
