"""What a penalty's derivative is the gradient of: divergences to frozen policies, and the entropy.

Of tokens sampled from `b`, `Σ b·c·∇log π` is the gradient of `κ·KL(current‖q)` where `c·b/π` is `κ·(log π - log q)` and
a constant, both of the state alone: what adds up to 0 under `π` has no gradient. With no `q` it is that of
`-κ·entropy`. On policy `b` is `π`; exact off policy is what is so for `b = old`, whatever `π` is.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sympy

from fibration.errors import SpecError
from fibration.language.atoms import Attribute, Count, Stratum, Total, advantage, at, token_log_ratio
from fibration.language.expressions import Apply, Expression, as_expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.operators import ZERO, stop, where
from fibration.language.order import Ordered
from fibration.language.penalties import Penalty
from fibration.language.places import whole_batch
from fibration.language.policies import CURRENT, OLD, LogProb, Policy
from fibration.language.statistics import Aggregate, rewritten, within
from fibration.language.sympy_bridge import ATOM_OF, CURRENT_LOG_PROB, OLD_LOG_PROB, show, symbol, to_sympy, vanishes
from fibration.language.traversal import atoms, desugar, transform
from fibration.laws.proof.branches import TooManyCases, cases
from fibration.laws.proof.signs import NOT_POSITIVE, Assumptions

X, REFERENCE = symbol(token_log_ratio), symbol(OLD_LOG_PROB)
FLOWS = ("total", "mean")  # the statistics that a gradient flows through


@dataclass(frozen=True)
class Divergence:
    """`c = Σ_q κ_q·(log π - log q) + κ_0·log π + const` at a token, `κ` of a state in which it is not 0."""

    kappa: dict[str, Any]  # of the frozen policies; "" is the entropy
    is_exact: bool  # off policy too, of tokens that old has sampled

    @property
    def words(self) -> str:
        terms = [f"{_times(k)}{f'(log π - log {q})' if q else 'log π'}" for q, k in self.kappa.items()]
        of = [f"{_times(k)}KL(current‖{q})" for q, k in self.kappa.items() if q]
        entropy = [f"-{_times(k)}entropy" for q, k in self.kappa.items() if not q]
        text = " + ".join(of + entropy).replace(" + -", " - ")
        c = f"{' + '.join(terms)} + const"
        what = f"the gradient of {text}"
        if self.is_exact:
            return f"∂P/∂log π = r·({c}): {what}, off policy too, of tokens that old has sampled"
        near = "near it, to first order" if OLD in self.kappa else "there alone"
        return f"on policy ∂P/∂log π = {c}: {what}, {near}"


def is_asked(penalty: Penalty) -> bool:
    """Whether a penalty is one of tokens, whatever their advantages are, that moves with the current policy."""
    own = () if penalty.objective is None else penalty.objective.formulas
    read = {a for formula in (penalty.formula, *own) for e in within(formula) for a in atoms(e)}
    moved = {a for e in within(penalty.formula) for a in atoms(e)} & {token_log_ratio, CURRENT_LOG_PROB}
    return penalty.over is None and advantage not in read and bool(moved)


def weighed(penalty: Penalty) -> Expression:
    """A penalty's formula with its own weights, which are held, and 0 where it is not kept."""
    if penalty.objective is None:
        return penalty.formula
    formula = penalty.formula
    for weight in penalty.objective.weighed:
        formula = stop(weight) * formula
    kept = [k.condition for k in penalty.objective.kept]
    return where(functools.reduce(operator.and_, kept), formula, 0) if kept else formula


def divergence(h: Hierarchy, leaf: Stratum, penalty: Penalty) -> Divergence | None:
    """What a penalty's derivative at a token is the gradient of; None where that is not shown."""
    formula, assume = at(weighed(penalty), leaf), _known(h, leaf)
    passed = [p for p in _policies(formula) if p not in (CURRENT, OLD)]
    try:
        for targets in _subsets(passed):
            if (found := _on_policy(formula, targets, assume)) is not None:
                return found
        return None if {*_policies(penalty.formula)} - {CURRENT, OLD} else _to_old(formula, assume)
    except TooManyCases:
        return None


def never_flows(h: Hierarchy, leaf: Stratum, penalty: Penalty) -> bool:
    """Whether on policy the derivative is the same for every token of a state, so that nothing is left of it."""
    formula = at(weighed(penalty), leaf)
    free = tuple(p for p in _policies(formula) if p not in (CURRENT, OLD))
    found = _derivatives(_coinciding(formula, free), _known(h, leaf).with_signs({X: ZERO}))
    if found is None:
        return False
    at_0 = [[c.subs(X, 0) for c in branches] for branches in found]
    return all(_is_of_state(cs[0]) and all(vanishes(c - cs[0]) for c in cs) for cs in at_0)


def _policies(formula: Expression) -> list[str]:
    """The policies whose log-probs are read, however deep."""
    read = (a.policy.name for e in within(formula) for a in atoms(e) if isinstance(a, LogProb))
    return list(dict.fromkeys(read))


def _known(h: Hierarchy, leaf: Stratum) -> Assumptions:
    """Tokens are neither certain nor impossible."""
    plain = Assumptions(whole_batch(h), h.assume, leaf)
    now = REFERENCE + X
    return plain.with_signs({now: NOT_POSITIVE, sympy.exp(now) - 1: NOT_POSITIVE})


def _subsets(policies: list[str]) -> Iterator[tuple[str, ...]]:
    for n in range(len(policies), -1, -1):
        yield from itertools.combinations(policies, n)


# ---------------------------------------------------------------- on policy, and off it

Groups = list[list[Any]]  # the derivatives in the branches of each state


def _on_policy(formula: Expression, targets: tuple[str, ...], assume: Assumptions) -> Divergence | None:
    """Where all policies but `targets` are one."""
    there = _coinciding(formula, targets)
    found = _derivatives(there, assume.with_signs({X: ZERO}))
    if found is None:
        return None
    at_0 = [[c.subs(X, 0) for c in branches] for branches in found]
    if (kappa := _kappas(at_0, targets, assume, REFERENCE)) is None:
        return None
    exact = _kappas(_from_old(there, assume), targets, assume, REFERENCE + X)
    return Divergence(exact or kappa, exact is not None)


def _to_old(formula: Expression, assume: Assumptions) -> Divergence | None:
    """Of a divergence to `old` itself, whose gradient is 0 on policy."""
    there = _coinciding(formula, ())
    exact = _rates(_from_old(there, assume), assume)
    if exact is not None:
        return Divergence({OLD: exact}, True)
    near = _derivatives(there, assume.with_signs({X: ZERO}))
    if near is None:
        return None
    found = []
    for branches in near:
        start, rate = (f(branches[0]).subs(X, 0) for f in (lambda c: c, lambda c: sympy.diff(c, X)))
        same = all(vanishes(c.subs(X, 0) - start) and vanishes(sympy.diff(c, X).subs(X, 0) - rate) for c in branches)
        # of tokens of the current policy, and of old, under which c counts exp(-x) times
        if not (same and all(_is_of_state(v) for v in (start, rate))):
            return None
        if not all(vanishes(k) or _is_positive(k, assume) for k in (rate, rate - start)):
            return None
        found += [rate] if not (vanishes(rate) or vanishes(rate - start)) else []
    return Divergence({OLD: found[0]}, False) if found else None


def _from_old(formula: Expression, assume: Assumptions) -> Groups:
    """`c·π_old/π`."""
    found = _derivatives(formula, assume) or []
    return [[sympy.expand(sympy.expand(c * sympy.exp(-X)), power_exp=True) for c in branches] for branches in found]


def _derivatives(formula: Expression, assume: Assumptions) -> Groups | None:
    """`∂P/∂log π` of a token in every branch; None where others have a part in it."""
    if _joins(formula):
        return None
    groups: dict[Any, list[Any]] = {}
    for case in cases(formula, assume):
        state = tuple((d, signs) for d, signs in case.signs if not any(map(_is_sampled_symbol, d.free_symbols)))
        groups.setdefault(state, []).append(case.slope(X))
    return list(groups.values())


def _kappas(found: Groups, targets: tuple[str, ...], assume: Assumptions, now: Any) -> dict[str, Any] | None:
    """`κ` of every policy and of the entropy, if these say all that a token has a part in, in every state.

    `now` is the log-prob of the current policy.
    """
    of = {q: symbol(LogProb(Policy(q))) for q in targets}
    kappas: dict[str, Any] = {}
    for branches in found:
        c = branches[0]
        kappa = {q: -sympy.diff(c, s) for q, s in of.items()}
        kappa[""] = sympy.diff(c, REFERENCE) - sum(kappa.values())
        rest = c - sum((k * (now - of.get(q, 0)) for q, k in kappa.items()), sympy.Integer(0))
        if not all(_is_of_state(v) for v in (*kappa.values(), rest)) or not all(vanishes(b - c) for b in branches):
            return None
        kappa = {q: k.subs({s: 0 for s in k.free_symbols if _is_sampled_symbol(s)}) for q, k in kappa.items()}
        kappa = {q: k for q, k in kappa.items() if not vanishes(k)}
        if any(not _is_positive(k, assume) for q, k in kappa.items() if q):
            return None
        kappas = kappas or kappa
    return kappas if kappas and set(targets) <= set(kappas) else None


def _rates(found: Groups, assume: Assumptions) -> Any:
    """`κ` where every derivative is `κ·x + const`."""
    rates = []
    for branches in found:
        rate = sympy.diff(branches[0], X)
        rest = branches[0] - rate * X
        if not (_is_of_state(rate) and _is_of_state(rest) and all(vanishes(b - branches[0]) for b in branches)):
            return None
        rate = rate.subs({s: 0 for s in rate.free_symbols if _is_sampled_symbol(s)})
        if not vanishes(rate):
            if not _is_positive(rate, assume):
                return None
            rates.append(rate)
    return rates[0] if rates else None


def _is_positive(value: Any, assume: Assumptions) -> bool:
    """Whether a number of the state is nowhere below 0, and not 0 everywhere."""
    return -1 not in assume.signs(value)


def _is_of_state(value: Any) -> bool:
    """Whether no log-prob of the token has a part in a value."""
    return all(vanishes(sympy.diff(value, s)) for s in value.free_symbols if _is_sampled_symbol(s))


def _is_sampled_symbol(s: Any) -> bool:
    return _is_sampled(ATOM_OF.get(s))


def _is_sampled(atom: Expression | None) -> bool:
    """Whether an atom changes with the token that is sampled: how long its row becomes is like `μ`, not asked."""
    if isinstance(atom, Ordered):
        return not atom.is_forward
    if isinstance(atom, Aggregate):  # later tokens' attributes are of what was sampled
        inside = {a for e in within(atom.formula) for a in atoms(e)}
        return any(isinstance(a, Attribute) or _is_sampled(a) for a in inside)
    if isinstance(atom, Total):
        return atom.over not in (None, atom.of)
    return atom is None or isinstance(atom, LogProb) or atom == token_log_ratio


# ---------------------------------------------------------------- what is read of others


def _joins(e: Expression, held: bool = False) -> bool:
    """Whether a gradient flows through what is gathered of several tokens."""
    if isinstance(e, Apply):
        return any(_joins(a, held or e.operator == "stop" or e.is_condition) for a in e.arguments)
    if isinstance(e, Aggregate) and e.kind not in FLOWS:
        return False
    if isinstance(e, (Aggregate, Ordered)) and not held:
        return any(a in (token_log_ratio, CURRENT_LOG_PROB) for inner in within(e.formula) for a in atoms(inner))
    return False


def _coinciding(formula: Expression, targets: tuple[str, ...]) -> Expression:
    """A formula where all frozen policies but `targets` are `old`, with statistics of what then is one number."""

    def gathered(atom: Expression) -> Expression:
        if not isinstance(atom, (Aggregate, Ordered)):
            return _as_old(atom, targets)
        inner = rewritten(desugar(atom.formula), lambda e: transform(e, lambda a: _at_rest(a, targets)))
        if atom.is_condition or not all(_is_given(a) for a in atoms(inner)):
            return atom
        if vanishes(to_sympy(inner)) or getattr(atom, "kind", "") == "deviation":
            return as_expression(0)
        return inner if isinstance(atom, Aggregate) and atom.kind != "total" else atom

    return transform(desugar(formula), gathered if not _joins(formula) else lambda a: _as_old(a, targets))


def _is_given(a: Expression) -> bool:
    """Whether an atom is one number for all that a statistic is of."""
    return not isinstance(a, (LogProb, Aggregate, Ordered, Count, Total)) and a != token_log_ratio


def _as_old(a: Expression, targets: tuple[str, ...]) -> Expression:
    frozen = isinstance(a, LogProb) and a.policy.name not in (CURRENT, *targets)
    return OLD_LOG_PROB if frozen else a


def _at_rest(a: Expression, targets: tuple[str, ...]) -> Expression:
    if a == token_log_ratio:
        return as_expression(0)
    return OLD_LOG_PROB if a == CURRENT_LOG_PROB else _as_old(a, targets)


# ---------------------------------------------------------------- words


def _times(kappa: Any) -> str:
    return "" if kappa == 1 else f"{_written(kappa)}·"


def _written(value: Any) -> str:
    try:
        return show(value)
    except SpecError:
        return str(value)
