"""Log-probs at which `search.py` compares two losses: around the breakpoints of weights, conditions and gates.

A comparison is evaluated as if all tokens were alike, so that a statistic equals its formula. If the comparison is then
affine in one log-prob, or in the probability or its inverse, its root is a breakpoint. Nothing here uses sympy.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

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
from fibration.language.exact import NoValue, TooLarge, transcendental
from fibration.language.expressions import Apply, Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import COMPARISONS
from fibration.language.order import Ordered
from fibration.language.pairs import Pair
from fibration.language.policies import CURRENT, OLD, LogProb
from fibration.language.statistics import Aggregate, atoms_within, within
from fibration.language.strata import NotOver
from fibration.language.traversal import applications, atoms, desugar, evaluate
from fibration.laws.batches.coefficients import formulas
from fibration.laws.batches.concrete import Concrete
from fibration.laws.values.duals import Real, log_of

ONE = Fraction(1)
exact_exp, exact_log = transcendental("exp"), transcendental("log")
LEVELS = (Fraction(1, 2), Fraction(9, 10), Fraction(1, 10), Fraction(1, 100))  # probabilities
MOST = 12


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


@dataclass(frozen=True)
class Breaks:
    """Where comparisons change sides: differences of two log-probs, as logarithms or as ratios, and probabilities."""

    logs: tuple[Fraction, ...]
    ratios: tuple[Fraction, ...]
    levels: tuple[Fraction, ...]
    log_ratios: tuple[Fraction, ...]  # of the current policy to the old one
    deviations: tuple[Fraction, ...]  # of its ratio from 1


def breaks(pair: Pair, concrete: Concrete) -> Breaks:
    """The breakpoints of all formulas in log-probs, at the first token of each leaf."""
    names = [p.name for p in pair.policies]
    found: dict[str, dict[Fraction, None]] = {k: {} for k in ("logs", "ratios", "levels", "log_ratios", "deviations")}
    for comparison, leaf in _comparisons(pair):
        if not concrete.size[leaf]:
            continue
        policies = _policies_of(comparison)
        for a in (ONE, -ONE) if policies and advantage in atoms_within(comparison) else (ONE,):
            for moved in (n for n in (CURRENT, OLD, *names) if n in policies):
                for is_log, root in _roots(comparison, concrete, leaf, moved, a):
                    if moved == OLD:
                        found["levels"] |= {root: None} if not is_log and 0 < root <= 1 else {}
                    elif moved == CURRENT:
                        found["log_ratios" if is_log else "deviations"][root if is_log else root - 1] = None
                    else:
                        found["logs" if is_log else "ratios"][root] = None
    return Breaks(**{k: tuple(v)[:MOST] for k, v in found.items()})


@functools.lru_cache(maxsize=64)
def _comparisons(pair: Pair) -> tuple[tuple[Apply, Stratum], ...]:
    conditions = [c for c in pair.conditions if isinstance(c, Expression)]
    found: dict[tuple[Apply, Stratum], None] = {}
    for h in pair:
        for leaf in h.leaves:
            below = [s for s in h.order if s == leaf or s in h.coarser(leaf)]
            gates = (in_channel(h.gate(s), c) for s in below for c in h.decomposition.channels)
            split = (h.with_mass(e, leaf) for _, e in h.decomposition.densities)
            for e in (*h.objective.formulas, *terms(h), *gates, *split, *conditions):
                for inner in within(e):
                    found |= {(c, leaf): None for c in applications(at(desugar(inner), leaf), *COMPARISONS)}
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def _policies_of(comparison: Expression) -> frozenset[str]:
    """The policies whose log-probs a comparison depends on."""
    found = {a.policy.name for a in atoms_within(comparison, LogProb)}
    moves = token_log_ratio in atoms_within(comparison)
    return frozenset(found | ({CURRENT} if moves else set()) | ({OLD} if found else set()))


def _roots(
    comparison: Apply, concrete: Concrete, leaf: Stratum, moved: str, a: Fraction
) -> Iterator[tuple[bool, Fraction]]:
    """Yields where both sides are equal as one policy moves: (True, a difference of log-probs) or (False, a ratio)."""
    sides = comparison.arguments
    tries = (
        (True, (Fraction(0), ONE, Fraction(2))),
        (False, (ONE, Fraction(2), Fraction(4))),
        (False, (ONE, Fraction(1, 2), Fraction(1, 4))),
    )
    for is_log, at_values in tries:
        u = at_values if is_log or at_values[1] > 1 else tuple(1 / v for v in at_values)
        moves = [v if is_log else exact_log(v) for v in at_values]
        try:
            y = [
                _value(sides[0], concrete, leaf, moved, m, a) - _value(sides[1], concrete, leaf, moved, m, a)
                for m in moves
            ]
        except (NoValue, NotOver, TooLarge):  # perhaps only tokens of another leaf have it
            continue
        slope = (y[1] - y[0]) / (u[1] - u[0])
        if not slope or abs((y[2] - y[1]) / (u[2] - u[1]) - slope) > Fraction(1, 10**40):
            continue
        root = u[0] - y[0] / slope
        short = root.limit_denominator(10**6)
        if abs(short - root) < Fraction(1, 10**40) and (is_log or short > 0) and abs(short) < 10**6:
            yield is_log, short if is_log or at_values[1] > 1 else 1 / short


def _value(e: Expression, concrete: Concrete, leaf: Stratum, moved: str, by: Fraction, a: Fraction) -> Any:
    """A formula at the first token of a leaf, where all tokens are alike and the policy `moved` moves by `by`.

    The current policy moves up from the old one, a passed policy down. If the old one moves, all policies are at `by`.
    """

    def atom(atom: Expression) -> Any:
        if atom == token_log_ratio:
            return by if moved == CURRENT else Fraction(0)
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
        if atom == residual or isinstance(atom, (Density, Gated)):
            return Fraction(0)
        return concrete.atom(atom, leaf, 0)

    atom_of = atom
    return evaluate(e, atom)


# ---------------------------------------------------------------- log-probs of the policies


@dataclass(frozen=True)
class PolicyLogProbs:
    """Log-probs of frozen policies, or their exponentials, token by token."""

    policies: dict[str, tuple[Fraction, ...]]
    as_ratios: bool

    def log_probs(self, order: Sequence[int]) -> dict[str, tuple[Real, ...]]:
        """The log-probs by policy, with the tokens in this order."""
        return {
            name: tuple(log_of(values[k], {}) if self.as_ratios else values[k] for k in order)
            for name, values in self.policies.items()
        }


def draw_log_probs(
    pair: Pair, found: Breaks, xs: Sequence[Fraction], as_ratios: bool, rng: random.Random
) -> PolicyLogProbs:
    """Draws log-probs for tokens with the log ratios `xs`; with `as_ratios`, `xs` are deviations of ratios from 1.

    Policies that the conditions equate get equal values. Values are ratios or logarithms, as the breakpoints of the
    policies are. No log-prob exceeds 0, and neither does the current policy's.
    """
    n, known = len(xs), pair.same_policies
    tied = any(CURRENT in g and OLD not in g for g in known)
    in_ratios = as_ratios if tied or bool(found.logs) is bool(found.ratios) else bool(found.ratios)
    if found.logs and found.ratios and not tied:
        in_ratios = rng.random() < 0.5
    # how far each policy is from the old one, token by token, as a log-prob or as a ratio
    pool = [*(found.ratios if in_ratios else found.logs)]
    sizes = [Fraction(3, 2), Fraction(1, 3)] if in_ratios else [Fraction(1, 3), -ONE]
    near = [v for t in pool for v in ((t, t * 2, t / 2) if in_ratios else (t, t + Fraction(1, 3), t - Fraction(1, 3)))]
    values = list(dict.fromkeys((*pool, *near, *sizes)))
    zero = ONE if in_ratios else Fraction(0)
    away: dict[str, tuple[Fraction, ...]] = {}
    for name in (p.name for p in pair.policies):
        v, u = rng.choice(values), rng.choice(values)
        kinds = (
            [zero] * n,
            [v] * n,
            [v if i == n - 1 else zero for i in range(n)],
            [v if i % 2 else u for i in range(n)],
            [rng.choice(values) for _ in range(n)],
        )
        away[name] = tuple(rng.choice(kinds))
    moved = [_moved(x, as_ratios, in_ratios) for x in xs]  # how far the current policy is from the old one
    for group in known:
        if OLD in group:
            away |= dict.fromkeys(group - {OLD, CURRENT}, (zero,) * n)
        else:
            others = sorted(group - {CURRENT})
            same = tuple(1 / m if in_ratios else -m for m in moved) if CURRENT in group else away[others[0]]
            away |= dict.fromkeys(others, same)
    levels = [*found.levels, *LEVELS]
    olds = [rng.choice(levels) for _ in range(n)] if rng.random() < 0.7 else [rng.choice(levels)] * n
    made: dict[str, list[Fraction]] = {name: [] for name in (OLD, *away)}
    for k in range(n):
        above = [moved[k], *((1 / d[k] if in_ratios else -d[k]) for d in away.values())]
        most = min(1 / t if in_ratios else -t for t in above)
        old = min(olds[k] if in_ratios else Fraction(-1, 2), most if most.denominator < 10**6 else _below(most))
        made[OLD].append(old)
        for name, d in away.items():
            made[name].append(old / d[k] if in_ratios else old - d[k])
    return PolicyLogProbs({name: tuple(v) for name, v in made.items()}, in_ratios)


def _moved(x: Fraction, as_ratios: bool, in_ratios: bool) -> Fraction:
    """How far the current policy is from the old one: `x` is a deviation of the ratio from 1, or a log ratio."""
    if as_ratios:
        return 1 + x if in_ratios else exact_log(1 + x)
    return exact_exp(x) if in_ratios else x


def _below(bound: Fraction) -> Fraction:
    """A short number below a bound of many digits; both are probabilities, or both are log-probs."""
    return Fraction(int(bound * 10**5), 10**5) if bound > 0 else Fraction(int(bound) - 1)
