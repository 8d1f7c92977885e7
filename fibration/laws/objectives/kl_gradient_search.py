"""Searches states with two or three tokens in which a penalty's expected update is the gradient of no divergence.

All logits of a state are free, so an update is one number per token: `π·(c - Σ π·c)` if the current policy samples. It
is a divergence's gradient if `c` is `log π - log q` up to a factor and a constant. Three tokens have probabilities
whose logarithms rise by equal steps, multiples of `log 2`. So `c` must rise by equal steps too, and nothing is rounded.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fibration.language.atoms import Component, Count, Parameter, token_log_ratio
from fibration.language.declared import CURRENT, OLD, LogProb
from fibration.language.exact import NoValue, transcendental
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.outline import whole_batch
from fibration.language.statistics import Ordered, atoms_within
from fibration.laws.batches import caps
from fibration.laws.batches.coefficients import Point, attempt, policies_read
from fibration.laws.batches.concrete import Concrete, Witness
from fibration.laws.batches.search import concretes, find
from fibration.laws.values.duals import STRICT, TooClose, log_of, slopes_of
from fibration.laws.values.numerals import in_brief, rounded, shown

Probabilities = tuple[Fraction, ...]
STEPS = (1, 12, 2, 4, 6, 24)  # powers of two from one token to the next: a cut of log ratios up to 32 lies between two
MOST_EARLIER = 2  # tokens before the state, if the formula reads how many there are
NEAR = (Fraction(1, 10**6), Fraction(1, 10**9))
SMALL, TINY = Fraction(1, 1000), Fraction(1, 10**30)
log = transcendental("log")


HALVES, THIRDS = (Fraction(1, 2),) * 2, (Fraction(1, 3),) * 3
SIDES = (Fraction(1, 4), Fraction(3, 4))


def _rising(step: int) -> Probabilities:
    """Probabilities of three tokens, each `2**step` times the one before."""
    total = sum(2 ** (step * k) for k in range(3))
    return tuple(Fraction(2 ** (step * k), total) for k in range(3))


@dataclass(frozen=True)
class State:
    """A state, and the probabilities of its tokens under every policy; each token is the last one of its row.

    Earlier tokens of the row have the probability 1/2 under every policy.
    """

    h: Hierarchy
    concrete: Concrete
    formula: Expression
    current: Probabilities
    others: Mapping[str, Probabilities]  # by policy, where they differ from the current policy's

    @classmethod
    def facing(
        cls, h: Hierarchy, concrete: Concrete, formula: Expression, q: str, other: Probabilities, own: Probabilities
    ) -> State:
        """The state in which `q` has the probabilities `other`, and the rest `own`; all `other` if `q` is empty."""
        return cls(h, concrete, formula, own, {q: other}) if q else cls(h, concrete, formula, other, {})

    def of(self, policy: str) -> Probabilities:
        return self.others.get(policy, self.current)

    @functools.cached_property
    def derivatives(self) -> list[Fraction] | None:
        """`∂P/∂log π` of every token; None if a token has none."""
        return attempt(lambda: [self._derivative(k) for k in range(len(self.current))], TooClose)

    def _derivative(self, k: int) -> Fraction:
        one, n = Fraction(1), self.earlier + 1
        held = {p: log_of(self.of(p)[k], {}) for p in (OLD, *self.h.policies) if p != CURRENT}
        log_probs = {p: [*[log_of(one / 2, {})] * self.earlier, own] for p, own in held.items()}
        log_ratios = (*[log_of(one, {})] * self.earlier, log_of(self.current[k] / self.of(OLD)[k], {}))
        here = Point(self.h, self.concrete, log_ratios, (one,) * n, log_probs, domain=STRICT)
        found = [slopes_of(here.value(self.formula, i, moves=True)) for i in range(n)]
        *others, own = (slopes.get(n - 1, Fraction(0)) for slopes in found)
        if any(others):
            raise NoValue("an earlier token's penalty reads the last token")
        return own

    @property
    def earlier(self) -> int:
        """How many tokens of the row come before."""
        return self.concrete.tokens - 1

    def update(self, sampled: Probabilities, c: Sequence[Fraction]) -> list[Fraction]:
        """The expected update of every logit, for tokens sampled with the probabilities `sampled`."""
        mean = sum((s * v for s, v in zip(sampled, c, strict=True)), Fraction(0))
        return [s * v - p * mean for s, p, v in zip(sampled, self.current, c, strict=True)]

    @property
    def lacks_update(self) -> bool:
        """Whether the derivatives give no update on policy."""
        return not any(map(_above, self.update(self.current, self.derivatives or [])))

    def away_from(self, q: str) -> list[Fraction]:
        """`log π - log q` of every token; `log π` if `q` is empty."""
        other = self.of(q) if q else (Fraction(1),) * len(self.current)
        return [log(p / o) for p, o in zip(self.current, other, strict=True)]


def no_divergence(h: Hierarchy, formula: Expression, passed: Sequence[str], may_be_0: bool) -> Witness | None:
    """A state in which a formula's update is the gradient of no divergence and no entropy; None if none was found.

    Each target must be ruled out in some state: the entropy, and the policies `passed`, or `old` if there are none.
    `may_be_0`: the formula may have no gradient in some states, because it reads more than probabilities.
    """
    found: list[Witness] = []
    for q in [*passed, "", *([] if passed else [OLD])]:
        # beside the old policy there may be a gradient where there is none on policy
        may_be = looks_beyond(formula) if q == OLD else may_be_0
        ruled_out = next(_ruled_out(h, formula, q, passed, may_be), None)
        if ruled_out is None:
            return None
        found.append(ruled_out)
    return found[0] if policies_read(formula) else found[-1]


def _ruled_out(h: Hierarchy, formula: Expression, q: str, passed: Sequence[str], may_be_0: bool) -> Iterator[Witness]:
    for concrete in _rows(h, formula):
        if q == OLD:
            yield from _near_old(h, concrete, formula, may_be_0)
            continue
        for other in () if q else passed:  # where all tokens have one probability, the entropy has no gradient
            state = State.facing(h, concrete, formula, other, _rising(1), THIRDS)
            if (c := state.derivatives) and any(map(_above, _steps(c))):
                yield _bent(state, q)
        two = State.facing(h, concrete, formula, q, SIDES, HALVES)
        if not may_be_0 and two.derivatives and two.lacks_update:
            yield _nothing_left(two, q)
        for step in STEPS:
            up = _rising(step)
            for powers, own in ((up, THIRDS), (up[::-1], THIRDS), (up, up[::-1])):
                state = State.facing(h, concrete, formula, q, powers, own)
                if (c := state.derivatives) is None:
                    continue
                first, last = _steps(c)
                if _above(first - last):
                    yield _bent(state, q)
                elif q and own == THIRDS and _above(first) and (first > 0) is (powers[0] < powers[1]):
                    yield _away(state, q)


def _rows(h: Hierarchy, formula: Expression) -> Iterator[Concrete]:
    """Yields batches of one row. It has several tokens only if the formula reads their order or number."""
    counts = bool(atoms_within(formula, Count, Ordered))
    most = 1 + MOST_EARLIER * counts
    for concrete in concretes(h, [formula], caps.STATES, whole_batch(h)):
        n = concrete.tokens
        if n <= most and concrete.size[h.rows] == 1 and (n == 1 or concrete.size[h.leaves[0]] == n):
            yield concrete


def leads_nowhere(
    h: Hierarchy, formula: Expression, passed: Sequence[str], named: bool, is_flat: bool
) -> Witness | None:
    """A state in which a formula's derivative falls where `log π - log q` rises, or leaves no update (`is_flat`).

    `named`: the penalty reads log-probs, but none of old. `is_flat`: the derivative is known to be the same at all
    tokens of a state.
    """
    if len(passed) > 1:
        return None
    q = passed[0] if passed else "" if named else OLD

    def fails(concrete: Concrete) -> Witness | None:
        if q == OLD:
            return next(_near_old(h, concrete, formula, not is_flat, turned=True), None)
        for near in (SIDES, SIDES[::-1], (Fraction(1, 1000), Fraction(999, 1000))):
            state = State.facing(h, concrete, formula, q, near, HALVES)
            if (c := state.derivatives) is None:
                continue
            if q and (c[1] - c[0]) * (near[1] - near[0]) > TINY:
                return _away(state, q)
            if is_flat and state.lacks_update:
                return _nothing_left(state, q)
        return None

    return find(_rows(h, formula), fails)


def _steps(c: Sequence[Fraction]) -> list[Fraction]:
    return [b - a for a, b in itertools.pairwise(c)]


def _above(v: Fraction) -> bool:
    """Whether a number is certainly not 0: logarithms have fifty digits."""
    return abs(v) > TINY


def _near_old(
    h: Hierarchy, concrete: Concrete, formula: Expression, may_be_0: bool, turned: bool = False
) -> Iterator[Witness]:
    """Yields witnesses against the divergence to `old`: on policy, and beside it for tokens sampled from either policy.

    `turned`: only states beside the old policy whose update is reversed or 0.
    """
    for powers in () if turned else (SIDES, *map(_rising, STEPS)):
        state = State(h, concrete, formula, powers, {})
        if state.derivatives and not state.lacks_update:
            said = f": the expected update is not 0, as that of {_name(OLD)} is"
            yield _witness(state, OLD, said, on_policy=True)
    none = TINY if turned else SMALL  # the update of a cube is 0 to first order, and leads the right way
    beside = [State(h, concrete, formula, HALVES, {OLD: (Fraction(1, 2) + e, Fraction(1, 2) - e)}) for e in NEAR]
    for who in (CURRENT, OLD):
        rates = []
        for state in beside:
            if (c := state.derivatives) is None:
                return
            goal = state.update(state.current, state.away_from(OLD))
            rates.append(state.update(state.of(who), c)[0] / goal[0])
        if all(r < -SMALL for r in rates) or (not may_be_0 and all(abs(r) <= none for r in rates)):
            rate = shown(rates[0]) if abs(rates[0]) > SMALL else 0
            said = f": of tokens of {who}, the expected update is {rate} times that of {_name(OLD)}"
            yield _witness(beside[0], OLD, said, ", ".join(map(shown, beside[0].derivatives or [])))


# ---------------------------------------------------------------- words


def _nothing_left(state: State, q: str) -> Witness:
    goal = ", ".join(shown(v) for v in state.update(state.current, state.away_from(q)))
    return _witness(
        state, q, f", so that the expected update of the logits is 0, 0, where that of {_name(q)} is {goal}"
    )


def _bent(state: State, q: str) -> Witness:
    steps = in_brief(*(rounded(v, TINY) for v in _steps(state.derivatives or [])))
    over = f"log(π/{q})" if q else "log π"
    return _witness(
        state,
        q,
        f", which goes from token to token by {steps}, where {over} goes by equal steps: the expected update is none "
        f"of {_name(q)}",
    )


def _away(state: State, q: str) -> Witness:
    return _witness(state, q, f", which falls where log(π/{q}) rises: the update leads away from {q}")


def _name(q: str) -> str:
    return f"KL(current‖{q})" if q else "the entropy"


def _witness(state: State, q: str, said: str, derivatives: str = "", on_policy: bool = False) -> Witness:
    """The witness that rules out a target. `said`: what its sentence says of the derivatives, here perhaps in words."""
    c = tuple(state.derivatives or ())
    number = {2: "two", 3: "three"}[len(state.current)]
    place = f"the state after {state.earlier} token{'s' * (state.earlier > 1)}," if state.earlier else "a state"
    text = f"in {place} with {number} tokens of probabilities {in_brief(*state.current)}"
    text += f", and {in_brief(*state.of(q))} under {q}" if q and not on_policy else ""
    text += f", ∂P/∂log π is {derivatives or in_brief(*(rounded(v, TINY) for v in c))}{said}"
    values: dict[str, Any] = {CURRENT: state.current, "derivatives": c, "target": q or "entropy"}
    values |= {p: state.of(p) for p in (OLD, *state.h.policies) if p != CURRENT}
    return Witness.on(state.concrete, text, values)


def looks_beyond(formula: Expression) -> bool:
    """Whether a formula reads more of a state than probabilities and parameters."""
    plain = (LogProb, Parameter, Component)
    return any(not isinstance(a, plain) and a != token_log_ratio for a in atoms_within(formula))
