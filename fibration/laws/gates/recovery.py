"""Recovery (def:fgh ii): `R ∘ F = id` on `r > 0`, decided case by case over the sign of the log ratio."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import sympy

from fibration.language.atoms import Stratum, advantage, mass, token_log_ratio
from fibration.language.exact import NoValue, TooLarge
from fibration.language.expressions import Expression, as_expression
from fibration.language.gates import Decomposition, log_ratio, ratio_deviation, signed_log_ratio
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import POSITIVE, exp
from fibration.language.outline import whole_batch
from fibration.language.statistics import Ordered
from fibration.language.sympy_bridge import cancelled, vanishes
from fibration.language.traversal import atoms, evaluate
from fibration.laws.batches import caps
from fibration.laws.batches.coefficients import Point
from fibration.laws.batches.concrete import Concrete, Witness, rounding
from fibration.laws.batches.search import concretes, find
from fibration.laws.gates.coordinates import X, composed
from fibration.laws.law import Decision, Law, proved, refuted, undecided
from fibration.laws.remedies import Fix, Offers, Otherwise
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.branches import TooManyCases, cases
from fibration.laws.signs.claim import Claim, known_at
from fibration.laws.subject import Subject
from fibration.laws.values.intervals import Unsure, enclose, of_its_sign
from fibration.laws.values.numerals import rounded, shown
from fibration.laws.values.probes import between, crossings, turning

STATEMENT = "R(F(r)) = r for every r > 0"


def decide_recovery(subject: Subject) -> Iterator[Decision]:
    h = subject.hierarchy
    open_leaf = next((leaf for leaf in h.leaves if not is_recovered(composed(h, leaf), subject.at(leaf))), None)
    if open_leaf is None:
        yield proved("decomposition", "R(F(r)) = exp(x) for each sign of the log ratio x")
        return
    lost = next(((leaf, w) for leaf in h.leaves if (w := ratio_not_recovered(h, leaf))), None)
    if lost:
        yield refuted("decomposition", f"R(F(r)) = {composed(h, lost[0])}", inverted(h), lost[1])
    else:
        yield undecided("decomposition", f"R(F(r)) = {composed(h, open_leaf)}", inverted(h))


def inverted(h: Hierarchy, first: str = "") -> Offers:
    """The remedy: the decomposition to write, whose `R` inverts its `F`, with this one's scale if that is above 0."""
    made = (log_ratio, ratio_deviation) if h.decomposition.channels == ("",) else (signed_log_ratio,)
    scale = h.decomposition.scale
    same = next((make for make in made if scaled(make, scale).densities == h.decomposition.densities), made[0])
    above_0 = all(Claim(h.with_mass(scale, s), known_at(h, s), POSITIVE).is_shown for s in h.leaves)
    split = scaled(same, scale if above_0 else mass)
    words = f"{first}write decomposition={split!r}, whose R inverts its F"
    usual = " or ".join(f"{make.__name__}()" for make in made)
    return (
        Fix(words, lambda: h.replace(decomposition=split)),
        Otherwise(f"{first}write decomposition={usual}, whose R inverts its F"),
    )


def scaled(make: Callable[..., Decomposition], scale: Expression) -> Decomposition:
    """The decomposition that a constructor makes; a scale of 1 is not written."""
    return make() if scale == as_expression(1) else make(scale=scale)


def is_recovered(whole: Expression, known: Assumptions) -> bool:
    """Whether `R(F(r))` is shown to be `exp(x)` for each sign of the log ratio `x`."""
    try:
        return all(
            case.defined(assume) and (_is_the_ratio(case.sympy()) if sign else vanishes(case.sympy().subs(X, 0) - 1))
            for sign in (1, 0, -1)
            for assume in (known.with_signs({X: frozenset({sign})}),)
            for case in cases(whole, assume)
        )
    except TooManyCases:
        return False


def _is_the_ratio(value: Any) -> bool:
    """Whether a branch-free formula is `exp(x)` where it has a value: powers of rational functions of `exp(x)`.

    Hyperbolic tangents are written in exponentials. sympy turns exponentials of logarithms into powers, and simplifies
    roots of `exp(x/n)`, which is above 0.
    """
    value = value.replace(sympy.tanh, lambda a: 1 - 2 / (1 + sympy.exp(2 * a)))
    multiples = [cancelled(a.args[0] / X) for a in value.atoms(sympy.exp) if a.args[0].has(X)]
    if not all(m.is_Rational for m in multiples):
        return False
    e, n = sympy.Dummy("e", positive=True), math.lcm(1, *(m.q for m in multiples))
    value = value.replace(sympy.exp, lambda a: e ** (cancelled(a / X) * n) if a.has(X) else sympy.exp(a))
    value = value.replace(lambda v: v.is_Pow and not v.exp.is_Integer, lambda v: sympy.factor(v.base) ** v.exp)
    return not value.has(X) and vanishes(value - e**n)


NEAR, FAR = -12, 2  # powers of ten between which log ratios at branch changes are searched
PROBES = tuple(
    s * Fraction(x) for x in ("0", "1", "1/2", "3", "1/10", "1/100", "10", "100", "1e-6", "1e-12") for s in (1, -1)
)


def ratio_not_recovered(h: Hierarchy, leaf: Stratum) -> Witness | None:
    """A witness: a log ratio that is not recovered. None if none is found."""
    whole, root = composed(h, leaf), h.roots[0]
    if atoms(whole, Ordered):
        return _not_recovered_in_order(h, leaf, whole)
    read, deciding, seen = [a for a in atoms(whole) if a != token_log_ratio], turning([whole]), set()
    signs = (Fraction(1), Fraction(-1)) if advantage in read else (Fraction(1),)

    def fails(concrete: Concrete) -> Witness | None:
        for i, own in itertools.product(range(concrete.size[leaf]), signs):
            point = tuple(own if a == advantage else concrete.atom(a, leaf, i) for a in read)
            if point in seen:
                continue
            seen.add(point)
            here = dict(zip(read, point, strict=True))
            for x in dict.fromkeys([*PROBES, *_changes(deciding, here)]):
                if lost := _lost(whole, {**here, token_log_ratio: x}):
                    got, truth, recovered = lost
                    place = "" if leaf == root else f"in {concrete.describe(root)}, "
                    given = f"log ratio {x if x.denominator <= 10**12 else shown(x)}"
                    given += f" and advantage {own}" if advantage in read else ""
                    text = f"{place}a {leaf} with {given} comes back as {got} instead of {truth}"
                    values = {"log_ratio": x, "recovered": recovered, "element": i}
                    return Witness(text, concrete, values | ({"advantage": own} if advantage in read else {}))
        return None

    return find(concretes(h, [whole], caps.RECOVERY), fails)


def _not_recovered_in_order(h: Hierarchy, leaf: Stratum, whole: Expression) -> Witness | None:
    """As `ratio_not_recovered`, for formulas with ordered sums: log ratios of a batch, one of them not recovered."""
    exact = rounding(whole)

    def fails(concrete: Concrete) -> Witness | None:
        n = concrete.tokens
        for x, own in itertools.product((Fraction(1, 2), Fraction(-1, 2)), (Fraction(1), Fraction(-1))):
            log_probs = (-1 - max(x, Fraction(0)),) * n  # those of the current policy are below 0 too
            here = replace(Point.alike(h, concrete, (own,) * n, log_probs), log_ratios=(x,) * n)
            truth = evaluate(exp(token_log_ratio), {token_log_ratio: x})
            for k, (s, i) in enumerate(here.places):
                value = here.attempt(whole, k) if s == leaf else truth
                if value is None or abs(value - truth) > exact:
                    got = "no value" if value is None else shown(value)
                    given = f" and advantages {own}" if advantage in atoms(whole) else ""
                    text = (
                        f"in {concrete.describe(h.rows)} with log ratios {', '.join([str(x)] * n)}{given}, "
                        f"token {k + 1} comes back as {got} instead of {shown(truth)}"
                    )
                    back = None if value is None else rounded(value, exact)
                    return Witness(text, concrete, {"log_ratio": x, "recovered": back, "element": i, "advantage": own})
        return None

    return find(concretes(h, [whole], caps.RECOVERY_IN_ORDER, whole_batch(h)), fails)


def _changes(deciding: list[Expression], here: Mapping[Expression, Fraction]) -> list[Fraction]:
    """Log ratios at which a branch changes, beside and between them."""

    def at(e: Expression) -> Callable[[Fraction], Fraction | None]:
        return lambda x: of_its_sign(e, {**here, token_log_ratio: x}.__getitem__)

    return between(sorted({c for e in deciding for c in crossings(at(e), near=NEAR, far=FAR)}))


def _lost(whole: Expression, here: Mapping[Expression, Fraction]) -> tuple[str, str, Fraction | None] | None:
    """The recovered and the true ratio as text, and the recovered one; None if they may be equal."""
    truth = enclose(exp(token_log_ratio), here.__getitem__)
    try:
        value = enclose(whole, here.__getitem__)
    except NoValue:
        return "no value", shown(truth.middle), None
    except (Unsure, TooLarge):
        return None
    if value.low <= truth.high and truth.low <= value.high:
        return None
    one, other = shown(value.middle), shown(truth.middle)
    off = "" if one != other else f", off by {shown(value.middle - truth.middle)}"
    return one, other + off, rounded(value.middle, value.high - value.low)


LAW = Law("recovery", STATEMENT, decide_recovery)
