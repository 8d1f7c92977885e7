"""Finds the divergence to a frozen policy, or the entropy, whose gradient a penalty's derivative gives.

For tokens sampled from `b`, `Σ b·c·∇log π` is the gradient of `κ·KL(current‖q)` if `c·b/π = κ·(log π - log q) + const`,
where `κ` and the constant depend on the state alone. The constant has no gradient, because `Σ π·∇log π = 0`. Without
`q` it is the gradient of `-κ·entropy`. On policy, `b` is `π`. A result is exact off policy if it holds for `b = old`
and every `π`.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy

from fibration.errors import SpecError
from fibration.language.atoms import Attribute, Parameter, Stratum, Summary, advantage, at, token_log_ratio
from fibration.language.declared import CURRENT, OLD, LogProb, Policy
from fibration.language.expressions import Apply, Expression, as_expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Penalty
from fibration.language.operators import POSITIVE, ZERO, Signs, stop, where
from fibration.language.outline import whole_batch
from fibration.language.statistics import Aggregate, atoms_within, rewritten, within
from fibration.language.sympy_bridge import (
    ATOM_OF,
    CURRENT_LOG_PROB,
    OLD_LOG_PROB,
    cancelled,
    from_sympy,
    show,
    symbol,
    to_sympy,
    vanishes,
)
from fibration.language.traversal import atoms, desugar, transform
from fibration.laws.batches.coefficients import policies_read
from fibration.laws.objectives.samples import AHEAD, HERE, Samples
from fibration.laws.signs.assumptions import NOT_POSITIVE, Assumptions
from fibration.laws.signs.branches import TooManyCases, cases

X, REFERENCE = symbol(token_log_ratio), symbol(OLD_LOG_PROB)
FLOWS = ("total", "mean")  # the statistics that a gradient flows through


@dataclass(frozen=True)
class Divergence:
    """`c = Σ_q κ_q·(log π - log q) + κ_0·log π + const` at a token."""

    kappas: tuple[dict[str, Any], ...]  # κ by frozen policy, one dict per kind of state; "" is the entropy
    is_exact: bool  # off policy too, for tokens sampled from old
    as_old: tuple[str, ...] = ()  # policies that are assumed to be old

    @property
    def words(self) -> str:
        c = " or ".join(_sum([(k, f"(log π - log {q})" if q else "log π") for q, k in s.items()]) for s in self.kappas)
        what = " or ".join(
            _sum([(k, f"KL(current‖{q})") if q else (-k, "entropy") for q, k in s.items()]) for s in self.kappas
        )
        where = "".join(f", where {p} is old" for p in self.as_old)
        if self.is_exact:
            told = f"∂P/∂log π = r·({c} + const): the gradient of {what}"
            return f"{told}, off policy too, of tokens that old has sampled{where}"
        near = "near it, to first order" if OLD in self.kappas[0] else "there alone"
        return f"on policy ∂P/∂log π = {c} + const: the gradient of {what}, {near}{where}"


def is_covered(h: Hierarchy, penalty: Penalty) -> bool:
    """Whether the law covers a penalty: it is one of tokens, reads no advantage, and moves with the current policy."""
    own = (penalty.objective or h.objective.of_penalties).formulas
    read = {a for formula in (penalty.formula, *own) for a in atoms_within(formula)}
    moved = set(atoms_within(penalty.formula)) & {token_log_ratio, CURRENT_LOG_PROB}
    return penalty.over is None and advantage not in read and bool(moved)


def weighed(h: Hierarchy, penalty: Penalty) -> Expression:
    """A penalty's formula times its weights, which carry no gradient; 0 where its conditions drop the token."""
    formula, objective = penalty.formula, penalty.objective or h.objective.of_penalties
    for weight in objective.weighed:
        formula = stop(weight) * formula
    kept = [k.condition for k in objective.kept]
    return where(functools.reduce(operator.and_, kept), formula, 0) if kept else formula


Groups = list[list[Any]]  # the derivatives in the branches of each state
Kappas = tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Sampled:
    """A penalty at the tokens of a leaf, one of which is sampled in every state."""

    h: Hierarchy
    leaf: Stratum
    penalty: Penalty

    @functools.cached_property
    def formula(self) -> Expression:
        return at(weighed(self.h, self.penalty), self.leaf)

    @property
    def named(self) -> list[str]:
        """The policies that the penalty's formula reads, inside statistics too, without those of its weights."""
        return policies_read(self.penalty.formula)

    @functools.cached_property
    def assume(self) -> Assumptions:
        """No token has a log-prob above 0, or a probability above 1."""
        plain = Assumptions(whole_batch(self.h), self.h.assume, self.leaf)
        now = REFERENCE + X
        return plain.with_signs({now: NOT_POSITIVE, sympy.exp(now) - 1: NOT_POSITIVE})

    @functools.cached_property
    def on_policy(self) -> Assumptions:
        return self.assume.with_signs({X: ZERO})

    @functools.cached_property
    def passed(self) -> list[str]:
        """The policies that the formula reads besides the current and the old one."""
        return [p for p in policies_read(self.formula) if p not in (CURRENT, OLD)]

    @property
    def divergence(self) -> Divergence | None:
        """The divergence whose gradient the derivative at a token gives; None if none was shown."""
        for n in range(len(self.passed), -1, -1):
            for targets in itertools.combinations(self.passed, n):
                if (found := self._to(targets)) is not None:
                    return found
        return None if {*self.named} - {CURRENT, OLD} else self._to_old()

    @functools.cached_property
    def _on_policy(self) -> Groups | None:
        """The derivatives in the branches on policy, where all frozen policies are free."""
        return self._derivatives(self._at_rest(tuple(self.passed)), self.on_policy)

    @property
    def never_flows(self) -> bool:
        """Whether on policy the derivative is the same for every token of a state, so its expected gradient is 0."""
        found = self._on_policy
        if found is None:
            return False
        at_0 = [[c.subs(X, 0) for c in branches] for branches in found]
        return all(self._is_of_state(cs[0]) and all(vanishes(c - cs[0]) for c in cs) for cs in at_0)

    @property
    def is_flat_near(self) -> bool:
        """Whether the derivative does not change, to first order, as the current policy moves from the old one."""
        found = self._near_old
        return found is not None and all(vanishes(sympy.diff(c, X).subs(X, 0)) for branches in found for c in branches)

    @property
    def _near_old(self) -> Groups | None:
        """The derivatives in the branches that may hold beside the old policy."""
        return self._derivatives(self._at_rest((), near=True), self.assume, near=True)

    # ------------------------------------------------------------ which way

    @property
    def rises(self) -> bool | None:
        """Whether the derivative rises over the tokens of a state with `log π - log q`.

        Without a policy `q` to compare with: whether it rises or falls with `log π`. False: the derivative is the same
        at all tokens. None: neither was shown.
        """
        targets = tuple(p for p in self.named if p not in (CURRENT, OLD))
        if len(targets) > 1:
            return None
        ratios = not targets and any({token_log_ratio, OLD_LOG_PROB} & set(atoms(e)) for e in within(self.formula))
        if ratios and ((near := self._rises_near()) or not self.named):
            return near
        if self.never_flows:
            return None if ratios or not self.is_flat_near else False
        found = self._derivatives(self._at_rest(targets), self.on_policy)
        rates: list[Signs] = []
        for branches in found or []:
            c = branches[0].subs(X, 0)
            rate = sympy.diff(c, REFERENCE)
            drawn = {REFERENCE, *(symbol(LogProb(Policy(q))) for q in targets)}
            alone = all(vanishes(sympy.diff(c, s)) for s in c.free_symbols - drawn if self._is_drawn(s))
            drift = sum((sympy.diff(c, s) for s in drawn), sympy.Integer(0))
            if not alone or not all(vanishes(b.subs(X, 0) - c) for b in branches) or (targets and not vanishes(drift)):
                return None
            rates.append(self.assume.signs(cancelled(rate)))
        ways = [frozenset({0, 1})] if targets else [frozenset({0, 1}), frozenset({-1, 0})]
        one_way = any(all(signs <= way for signs in rates) for way in ways)
        return (one_way and any(0 not in signs for signs in rates)) or None

    def _rises_near(self) -> bool | None:
        """Whether the derivative rises beside the old policy, for tokens sampled from either, in every state."""
        found = self._near_old
        of_current: list[Any] = []
        of_old: list[Any] = []  # sampled from old, where c has the factor exp(-x)
        for branches in found or []:
            starts = [c.subs(X, 0) for c in branches]
            slopes = [sympy.diff(c, X).subs(X, 0) for c in branches]
            if not all(vanishes(s - starts[0]) for s in starts) or not all(map(self._is_of_state, (*starts, *slopes))):
                return None
            of_current += slopes
            of_old += [s - starts[0] for s in slopes]
        if not found or all(map(vanishes, of_current)) or all(map(vanishes, of_old)):
            return False if found else None
        both = (of_current, of_old)
        above = all(any(self.assume.signs(r) == POSITIVE for r in rates) for rates in both)
        return (above and all(map(self._is_positive, (*of_current, *of_old)))) or None

    @property
    def has_slope(self) -> bool:
        """Whether on policy the derivative is not 0 at all tokens, or could not be computed."""
        found = self._on_policy
        return found is None or not all(vanishes(c.subs(X, 0)) for branches in found for c in branches)

    # ------------------------------------------------------------ on policy, and off it

    def _to(self, targets: tuple[str, ...]) -> Divergence | None:
        """The divergence to `targets`, where all other frozen policies are old."""
        found = self._derivatives(self._at_rest(targets), self.on_policy)
        at_0 = [[c.subs(X, 0) for c in branches] for branches in found or []]
        if (kappas := self._kappas(at_0, targets, REFERENCE)) is None:
            return None
        as_old = tuple(p for p in self.passed if p not in targets)
        if as_old and not self._only_weigh(as_old, targets, at_0):
            return None
        exact = self._kappas(self._from_old(targets), targets, REFERENCE + X)
        return Divergence(exact or kappas, exact is not None, as_old)

    def _only_weigh(self, as_old: tuple[str, ...], targets: tuple[str, ...], at_0: Groups) -> bool:
        """Whether the policies `as_old` enter only through weights (ratios of `old` to them) and conditions.

        A term in `log π - log p` with `p` in `as_old` is no divergence to another policy, although it vanishes where
        `p` is `old`.
        """
        free = self._on_policy
        given = [symbol(LogProb(Policy(q))) for q in targets]
        ratio = [REFERENCE, *(symbol(LogProb(Policy(p))) for p in as_old)]

        def weighs(c: Any, one: Any) -> bool:
            w = c / one
            drift = sum((sympy.diff(w, s) for s in ratio), sympy.Integer(0))
            return all(vanishes(sympy.diff(w, s)) for s in given) and vanishes(drift)

        ones = [c for branches in at_0 for c in branches if not vanishes(c)]
        moved = [c.subs(X, 0) for branches in free or [] for c in branches]
        return free is not None and all(vanishes(c) or any(weighs(c, one) for one in ones) for c in moved)

    def _to_old(self) -> Divergence | None:
        """The divergence to `old` itself, whose gradient is 0 on policy."""
        as_old = tuple(self.passed)
        exact = self._by_state(self._from_old(()), lambda c: {OLD: sympy.diff(c, X)}, {OLD: X}, set())
        if exact is not None:
            return Divergence(exact, True, as_old)
        found = []
        for branches in self._near_old or []:
            start, rate = (f(branches[0]).subs(X, 0) for f in (lambda c: c, lambda c: sympy.diff(c, X)))
            starts = (c.subs(X, 0) - start for c in branches)
            rates = (sympy.diff(c, X).subs(X, 0) - rate for c in branches)
            # for tokens sampled from the current policy, and from old, where c has the factor exp(-x)
            if not (all(map(vanishes, (*starts, *rates))) and all(self._is_of_state(v) for v in (start, rate))):
                return None
            if not all(vanishes(k) or self._is_positive(k) for k in (rate, rate - start)):
                return None
            found += [{OLD: rate}] if not (vanishes(rate) or vanishes(rate - start)) else []
        return Divergence(_distinct(found), False, as_old) if found else None

    def _from_old(self, targets: tuple[str, ...]) -> Groups:
        """`c·π_old/π`, with statistics as they are off policy."""
        free = rewritten(desugar(self.formula), lambda e: transform(e, lambda a: _as_old(a, targets)))
        found = self._derivatives(free, self.assume) or []
        return [[sympy.expand(sympy.expand(c * sympy.exp(-X)), power_exp=True) for c in branches] for branches in found]

    def _derivatives(self, formula: Expression, assume: Assumptions, near: bool = False) -> Groups | None:
        """`∂P/∂log π` of a token in every branch, by state.

        None if the gradient flows through several tokens, if a root may have no slope, or if there are too many
        branches. `near`: only in branches that may hold beside a log ratio of 0.
        """
        if _joins(formula):
            return None
        try:
            branches = cases(formula, assume)
        except TooManyCases:
            return None
        groups: dict[tuple[tuple[Any, Signs], ...], list[Any]] = {}
        for case in branches:
            beside = ((signs, self.assume.signs(d.subs(X, 0))) for d, signs in case.signs if near)
            if not all(0 in there or there & signs for signs, there in beside):
                continue
            if not case.defined(assume, case.needs_of_slopes(self._is_drawn)):
                return None
            state = tuple((d, signs) for d, signs in case.signs if not any(map(self._is_drawn, d.free_symbols)))
            groups.setdefault(state, []).append(case.slope(X))
        return [[c for other in groups if _agree(state, other) for c in groups[other]] for state in groups]

    def _kappas(self, found: Groups, targets: tuple[str, ...], now: Any) -> Kappas | None:
        """`κ` of every policy and of the entropy, by state. None unless the rest of the derivative is of the state.

        `now`: the log-prob of the current policy. `κ` of a policy may not be negative, and every target must have one.
        """
        of = {q: symbol(LogProb(Policy(q))) for q in targets}
        terms = {q: now - of.get(q, 0) for q in (*targets, "")}

        def split(c: Any) -> dict[str, Any]:
            kappa = {q: -sympy.diff(c, s) for q, s in of.items()}
            return {**kappa, "": sympy.diff(c, REFERENCE) - sum(kappa.values())}

        return self._by_state(found, split, terms, {*targets})

    def _by_state(
        self, found: Groups, split: Callable[[Any], dict[str, Any]], terms: dict[str, Any], needed: set[str]
    ) -> Kappas | None:
        """`κ` by state, where the derivative is `Σ κ·term` and something of the state; else None."""
        kappas = []
        for branches in found:
            c = branches[0]
            kappa = split(c)
            rest = c - sum((k * terms[q] for q, k in kappa.items()), sympy.Integer(0))
            alike = all(vanishes(b - c) for b in branches)
            if not alike or not all(self._is_of_state(v) for v in (*kappa.values(), rest)):
                return None
            # without the token's symbols, which cancel
            at_0 = {q: k.subs({s: 0 for s in k.free_symbols if self._is_drawn(s)}) for q, k in kappa.items()}
            kappa = {q: k for q, k in at_0.items() if not vanishes(k)}
            if any(not self._is_positive(k) for q, k in kappa.items() if q):
                return None
            kappas += [kappa] if kappa else []
        same = all(kappa.keys() == kappas[0].keys() for kappa in kappas)
        return _distinct(kappas) if kappas and same and needed <= set(kappas[0]) else None

    # ------------------------------------------------------------ what is of the state

    def _is_positive(self, value: Any) -> bool:
        """Whether a value is nowhere below 0."""
        return -1 not in self.assume.signs(value)

    def _is_of_state(self, value: Any) -> bool:
        """Whether a value does not depend on the sampled token."""
        return all(vanishes(sympy.diff(value, s)) for s in value.free_symbols if self._is_drawn(s))

    def _is_drawn(self, s: Any) -> bool:
        """Whether the value of a symbol changes with the sampled token.

        The length of the row does not count, as `μ` does not. Attributes of the token belong to its state, those of
        later tokens do not.
        """
        atom = ATOM_OF.get(s)
        if atom is None:
            return True
        read = Samples(self.h).of_atom(atom, HERE)
        return any(when in AHEAD and what != "number" for when, what in read)

    def _at_rest(self, targets: tuple[str, ...], near: bool = False) -> Expression:
        """The formula where all frozen policies but `targets` are `old`; a statistic of one number is replaced by it.

        `near`: inside statistics, the current policy may differ from `old`.
        """
        resting = _as_old if near else _resting

        def gathered(atom: Expression) -> Expression:
            if not isinstance(atom, Summary):
                return _as_old(atom, targets)
            inner = rewritten(desugar(atom.formula), lambda e: transform(e, lambda a: resting(a, targets)))
            if atom.is_condition:
                return atom
            if vanishes(to_sympy(inner)):
                return as_expression(0)
            if not isinstance(atom, Aggregate) or atom.kind == "total" or not self._is_one(inner, atom.over):
                return atom
            return as_expression(0) if atom.kind == "deviation" else inner

        joined = _joins(self.formula)
        return transform(desugar(self.formula), (lambda a: _as_old(a, targets)) if joined else gathered)

    def _is_one(self, formula: Expression, over: object) -> bool:
        """Whether a formula has one value on all that lies over an element of `over`, and so belongs to the state."""
        below = (over, *whole_batch(self.h).coarser(over))  # type: ignore[arg-type]
        given = (a.on if isinstance(a, (Attribute, Parameter)) else over for a in atoms(formula))
        plain = all(isinstance(a, (Attribute, Parameter)) for a in atoms(formula))
        return plain and all(on is None or on in below for on in given)


def _joins(e: Expression, held: bool = False) -> bool:
    """Whether a gradient flows through a statistic or a sum over several tokens."""
    if isinstance(e, Apply):
        return any(_joins(a, held or e.operator == "stop" or e.is_condition) for a in e.arguments)
    if isinstance(e, Aggregate) and e.kind not in FLOWS:
        return False
    if isinstance(e, Summary) and not held:
        return any(a in (token_log_ratio, CURRENT_LOG_PROB) for a in atoms_within(e.formula))
    return False


def _as_old(a: Expression, targets: tuple[str, ...]) -> Expression:
    frozen = isinstance(a, LogProb) and a.policy.name not in (CURRENT, *targets)
    return OLD_LOG_PROB if frozen else a


def _resting(a: Expression, targets: tuple[str, ...]) -> Expression:
    if a == token_log_ratio:
        return as_expression(0)
    return OLD_LOG_PROB if a == CURRENT_LOG_PROB else _as_old(a, targets)


def _agree(state: tuple[tuple[Any, Signs], ...], other: tuple[tuple[Any, Signs], ...]) -> bool:
    """Whether two sets of conditions can describe one state; a branch need not list all conditions of its state."""
    known = dict(other)
    return all(known.get(d, signs) & signs for d, signs in state)


def _distinct(kappas: list[dict[str, Any]]) -> Kappas:
    found: list[dict[str, Any]] = []
    for kappa in kappas:
        known = any(k.keys() == kappa.keys() and all(vanishes(k[q] - v) for q, v in kappa.items()) for k in found)
        found += [] if known else [kappa]
    return tuple(found)


# ---------------------------------------------------------------- words


def _sum(terms: list[tuple[Any, str]]) -> str:
    return " + ".join(f"{_times(k)}{word}" for k, word in terms).replace(" + -", " - ")


def _times(kappa: Any) -> str:
    if kappa in (1, -1):
        return "" if kappa == 1 else "-"
    try:
        written = from_sympy(kappa)
    except SpecError:  # some results of sympy have no written form
        return f"({kappa})·"
    text = show(kappa)
    return f"({text})·" if isinstance(written, Apply) and written.operator in ("+", "-", "where") else f"{text}·"
