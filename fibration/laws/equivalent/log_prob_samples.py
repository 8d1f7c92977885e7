"""Log ratios and log-probs at which `search.py` compares two losses: around the breakpoints of their formulas.

A comparison is evaluated as if all tokens were alike, so that a statistic equals its formula. If the comparison is then
affine in one log-prob, or in the probability or its inverse, its root is a breakpoint. Nothing here uses sympy.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple, TypeVar

from fibration.language.atoms import (
    Count,
    Density,
    Gated,
    Stratum,
    advantage,
    at,
    in_channel,
    residual,
    reward,
    token_log_ratio,
)
from fibration.language.declared import CURRENT, OLD, LogProb
from fibration.language.exact import TooLarge, transcendental
from fibration.language.expressions import Apply, Expression, as_expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import COMPARISONS
from fibration.language.pairs import Pair
from fibration.language.statistics import Aggregate, Ordered, atoms_within, within
from fibration.language.strata import NotOver
from fibration.language.traversal import applications, atoms, desugar, evaluate
from fibration.laws.batches.coefficients import attempt, formulas
from fibration.laws.batches.concrete import Concrete
from fibration.laws.values.duals import LogOf, Real, log_of, value_of

ONE, ZERO = Fraction(1), Fraction(0)
exact_exp, exact_log = transcendental("exp"), functools.lru_cache(1024)(transcendental("log"))
LEVELS = (Fraction(1, 2), Fraction(9, 10), Fraction(1, 10), Fraction(1, 100))  # probabilities
MOST = 24  # breakpoints of one kind
CLOSE = Fraction(1, 10**40)
LARGEST = 10**6  # denominator of a short number
FAR = 1000  # no breakpoint is further out
T = TypeVar("T")


def read_by(h: Hierarchy) -> Iterator[Expression]:
    """Yields every formula of a loss, and the formulas of its statistics."""
    for e in (*formulas(h), h.objective.spelled_out(h.leaves, h.rows), *h.objective.formulas, *terms(h)):
        yield from within(e)
    if h.advantages is not None:
        yield from within(h.advantages)


def terms(h: Hierarchy) -> Iterator[Expression]:
    """Yields the formulas of the penalties, and of their own objectives."""
    for p in h.penalties.values():
        yield p.formula
        if p.objective is not None:
            yield from (p.objective.spelled_out(h.leaves, h.rows), *p.objective.formulas)


def reads_policies(pair: Pair) -> bool:
    """Whether a formula or condition reads a log-prob itself, and not only the log ratio."""
    conditions = (e for c in pair.conditions if isinstance(c, Expression) for e in within(c))
    return any(isinstance(a, LogProb) for e in (*(e for h in pair for e in read_by(h)), *conditions) for a in atoms(e))


# ---------------------------------------------------------------- breakpoints


class Breaks(NamedTuple):
    """Where comparisons change sides, as log-probs. One whose exponential is rational is a `LogOf`."""

    current: list[Real]  # how far the current policy is above the old one
    old: list[Real]  # the log-prob of all policies
    passed: list[Real]  # how far the old policy is above a passed one


def breaks(pair: Pair, concrete: Concrete) -> Breaks:
    """The breakpoints of all formulas, at the first token of each leaf."""
    found = [dict[Real, None]() for _ in Breaks._fields]
    for comparison, leaf, unit in _comparisons(pair):
        policies = _policies_of(comparison, unit) if concrete.size[leaf] else ()
        for a in (ONE, -ONE) if advantage in atoms_within(comparison) else (ONE,):
            for k, moved in enumerate((CURRENT, OLD, *(p.name for p in pair.policies))):
                if moved in policies:
                    found[min(k, 2)] |= dict.fromkeys(_roots(comparison, unit, concrete, leaf, moved, a))
    return Breaks(*(list(values)[:MOST] for values in found))


@functools.lru_cache(maxsize=64)
def _comparisons(pair: Pair) -> tuple[tuple[Apply, Stratum, Expression], ...]:
    """The comparisons in all formulas, as they are read at each leaf, and the residual there of a token alone."""
    conditions = [c for c in pair.conditions if isinstance(c, Expression)]
    found: dict[tuple[Apply, Stratum, Expression], None] = {}
    for h in pair:
        for leaf in h.leaves:
            split = {c: h.with_mass(e, leaf) for c, e in h.decomposition.densities}
            read = [(e, as_expression(0)) for e in (*h.objective.formulas, *terms(h), *split.values(), *conditions)]
            for s in (s for s in h.order if s == leaf or s in h.coarser(leaf)):
                share = h.masses[s] / h.masses[leaf]
                read += [(in_channel(h.gate(s), c), share * e) for c, e in split.items()]
            for inner, unit in ((inner, unit) for e, unit in read for inner in within(e)):
                found |= {(c, leaf, unit): None for c in applications(at(desugar(inner), leaf), *COMPARISONS)}
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def _policies_of(comparison: Expression, unit: Expression) -> frozenset[str]:
    """The policies whose log-probs a comparison depends on."""
    read = atoms_within(comparison)
    read = (*read, *atoms_within(unit)) if residual in read else read
    found, moves = {a.policy.name for a in read if isinstance(a, LogProb)}, token_log_ratio in read
    return frozenset(found | ({CURRENT} if moves else set()) | ({OLD} if found else set()))


WAYS: tuple[tuple[Callable[[Fraction], Fraction], tuple[Fraction, ...]], ...] = (
    (lambda v: v, (ZERO, ONE, 2 * ONE)),
    (lambda v: v, (ZERO, -ONE, -2 * ONE)),
    (exact_log, (ONE, 2 * ONE, 4 * ONE)),
    (exact_log, (ONE, ONE / 2, ONE / 4)),
    (lambda v: -exact_log(v), (ONE, 2 * ONE, 4 * ONE)),
)


def _roots(
    comparison: Apply, unit: Expression, concrete: Concrete, leaf: Stratum, moved: str, a: Fraction
) -> Iterator[Real]:
    """Yields how far one policy has moved where both sides are equal, if their difference is affine.

    It may be affine in the log-prob, in the probability or in its inverse, where that increases or where it decreases.
    """
    difference = comparison.arguments[0] - comparison.arguments[1]

    @functools.cache
    def value(move: Fraction) -> Fraction | None:  # perhaps only tokens of another leaf have it
        return attempt(lambda: _value(difference, unit, concrete, leaf, moved, move, a), NotOver, TooLarge)

    for log_prob, u in WAYS:
        y = [value(log_prob(v)) for v in u]
        if y[0] is None or y[1] is None or y[2] is None:
            continue
        slope = (y[1] - y[0]) / (u[1] - u[0])
        if not slope or abs((y[2] - y[1]) / (u[2] - u[1]) - slope) > CLOSE:
            continue
        root = attempt(partial(log_prob, u[0] - y[0] / slope))
        if root is not None and 0 < abs(root) < FAR and (moved != OLD or root < 0):
            yield _short(root)


def _short(x: Fraction) -> Real:
    """A log-prob as a short number or as the logarithm of one: the same number, or one close to it."""
    ratio = exact_exp(x).limit_denominator(LARGEST)
    return log_of(ratio, {}) if ratio and abs(exact_log(ratio) - x) < CLOSE else x.limit_denominator(LARGEST)


def _value(
    e: Expression, unit: Expression, concrete: Concrete, leaf: Stratum, moved: str, by: Fraction, a: Fraction
) -> Any:
    """A formula at the first token of a leaf, where all tokens are alike and the policy `moved` moves by `by`.

    The current policy moves up from the old one, a passed policy down. If the old one moves, all policies are at `by`.
    """

    def atom(atom: Expression) -> Any:
        if atom == token_log_ratio:
            return by if moved == CURRENT else ZERO
        if isinstance(atom, LogProb):
            base = by if moved == OLD else -ONE
            own = by if moved == CURRENT else -by
            return base + own if atom.policy.name == moved != OLD else base
        if isinstance(atom, Aggregate):
            value = evaluate(at(atom.formula, atom.of or leaf), atom_of)
            assert isinstance(atom.over, Stratum)
            each = concrete.shape.leaves_over(atom.over) if atom.of is None else [atom.of]
            number = sum(concrete.atom(Count(s, atom.over), leaf, 0) for s in each)
            return value * {"total": number, "deviation": 0}.get(atom.kind, 1)
        if isinstance(atom, Ordered):  # as at the second token
            return evaluate(atom.discount, atom_of) * evaluate(at(atom.formula, atom.of or leaf), atom_of)
        if atom in (advantage, reward):
            return a
        if atom == residual:
            return evaluate(unit, atom_of)
        return ZERO if isinstance(atom, (Density, Gated)) else concrete.atom(atom, leaf, 0)

    atom_of = atom
    return evaluate(e, atom)


# ---------------------------------------------------------------- log-probs of the policies


def scale(in_ratios: bool) -> Callable[[Fraction], Real]:
    """Returns a log-prob of a number: of a ratio its logarithm, else the number itself."""
    return (lambda v: log_of(v, {})) if in_ratios else (lambda v: v)


def kinds(n: int, zero: T, values: Sequence[T], rng: random.Random) -> list[list[T]]:
    """Values for `n` tokens: all equal, one different, alternating, or any."""
    v, u = rng.choice(values), rng.choice(values)
    last, turns = [v if i == n - 1 else zero for i in range(n)], [v if i % 2 else u for i in range(n)]
    return [[v] * n, last, turns, [rng.choice(values) for _ in range(n)]]


def draw_log_probs(pair: Pair, found: Breaks, moved: Sequence[Real], rng: random.Random) -> dict[str, tuple[Real, ...]]:
    """Draws log-probs of the frozen policies for tokens with these log ratios.

    Policies that the conditions equate get equal values. All values are logarithms of rational numbers, or all are
    rational, as the breakpoints of the policies are. No log-prob exceeds 0, and neither does the current policy's.
    """
    n, known, in_ratios = len(moved), pair.same_policies, all(isinstance(x, LogOf) for x in moved)
    if found.passed and not any(CURRENT in g and OLD not in g for g in known):
        in_ratios = isinstance(rng.choice(found.passed), LogOf)
    one = scale(in_ratios)
    zero, step, *sizes = (
        one(Fraction(v)) for v in (("1", "2", "3/2", "1/3") if in_ratios else ("0", "1/3", "1/3", "-1"))
    )
    near = [v for t in found.passed if isinstance(t, LogOf) is in_ratios for v in (t, t + step, t - step)]
    values = list(dict.fromkeys((*near, *sizes)))
    if in_ratios is not all(isinstance(x, LogOf) for x in moved):
        moved = [one(exact_exp(value_of(x)) if in_ratios else value_of(x)) for x in moved]
    # how far the old policy is above each passed one, token by token
    above = {p.name: rng.choice([[zero] * n, *kinds(n, zero, values, rng)]) for p in pair.policies}
    for group in known:
        others = sorted(group - {OLD, CURRENT})
        same = [x * -ONE for x in moved] if CURRENT in group else above[others[0]]
        above |= dict.fromkeys(others, [zero] * n if OLD in group else same)
    levels = [t for t in found.old if isinstance(t, LogOf) is in_ratios]
    levels += map(one, LEVELS if in_ratios else (Fraction(-1, 2),))
    olds = [rng.choice(levels) for _ in range(n)] if rng.random() < 0.7 else [rng.choice(levels)] * n
    for k in range(n):
        most = min((x * -ONE for x in (moved[k], *(-ONE * d[k] for d in above.values()))), key=value_of)
        olds[k] = min(olds[k], _shorter(most), key=value_of)
    made = {name: tuple(old - d for old, d in zip(olds, each, strict=True)) for name, each in above.items()}
    return {OLD: tuple(olds), **made}


def _shorter(bound: Real) -> Real:
    """A log-prob, or one below it if its number has many digits."""
    if isinstance(bound, LogOf):
        return bound if bound.ratio.denominator < LARGEST else log_of(Fraction(1, int(1 / bound.ratio) + 1), {})
    return bound if value_of(bound).denominator < LARGEST else Fraction(int(value_of(bound)) - 1)
