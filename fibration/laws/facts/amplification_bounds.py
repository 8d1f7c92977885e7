"""Amplification: how strongly one token is pulled, relative to its weight and the advantages around it.

With `c_i = ∂J/∂log π_i`, it is the largest `|c_i|/(μ_i·a)` over all batches whose advantages are at most `a` in size.
Where levels are coupled, `c_i` collects the advantages of other tokens, so the token's own would be no measure of it.

In units of the leaf measure `m`, with the slope `G_v` of the gate at each element that a token lies over, and
`y = (μ/m)·A·∂R/∂D`,

    c_i/m_i = F'(x_i)·Σ_u E_m[(G_u - Σ_v c_u·G_v)·y | u(i)]

over the leaf and every coarser stratum `u`, with the Möbius numbers `c_u` of the strata `v` between a token and `u`: on
a chain, the slope of `u` less that of the stratum over it. A mean is at most the largest value that it averages. If all
ratios are one number, only the root has a residual, and `c_i/(μ_i·A)` is `g'·∂𝒢/∂D` of the root's gate alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import sympy
from sympy import oo

from fibration.language.atoms import BATCH, Count, Reading, Stratum, advantage, read_at
from fibration.language.hierarchy import gates
from fibration.language.sympy_bridge import cancelled, from_sympy, symbol, to_sympy, vanishes
from fibration.language.traversal import atoms
from fibration.laws.gates.contributions import Lines, contribution, domain, held, reads_batch, slopes
from fibration.laws.gates.coordinates import X
from fibration.laws.gates.pieces import Line, Piece, extremes, text
from fibration.laws.kernels.fibre_sums import fibre_sum
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.branches import TooManyCases, cases
from fibration.laws.signs.neighbourhood import RHO, is_kinked
from fibration.laws.subject import Subject

SIDES = (1, -1)  # of the advantage
MOST_NAMES = 20  # counts and parameters in formulas that are compared or shown


class NotCertified(Exception):
    """No bound is known; the message says why."""


class TooLong(NotCertified):
    """A bound is too long to be read, and costs much to compare with others."""

    def __init__(self) -> None:
        super().__init__(
            f"formulas with more than {MOST_NAMES} counts and parameters in all are not compared, nor said"
        )


@dataclass(frozen=True)
class Bound:
    """The upper bound `most` of `|c_i|/(μ_i·a)`, and a value `least` that it comes arbitrarily near.

    Without a bound, `grows` is what it grows like, and `where` the ratios for which it does. `why`: why no bound is
    certified.
    """

    most: Any = oo
    least: Any = None
    grows: str = ""
    where: str = ""
    why: str = ""

    @property
    def is_exact(self) -> bool:
        return bool(self.grows) or (self.least is not None and self.most != oo and vanishes(self.most - self.least))

    def __str__(self) -> str:
        if self.is_exact:
            return f"{self.grows}, without bound" if self.grows else text(self.most)
        unknown = "not certified" if self.why else "no bound known"
        most = unknown if self.most == oo else f"at most {text(self.most)}"
        return most if self.least in (None, 0) else f"{most}, at least {text(self.least)}"


class Amplified:
    """The bounds of one hierarchy."""

    def __init__(self, subject: Subject, known: str, table: Lines) -> None:
        self.subject, self.known, self.table, self.h = subject, known, table, subject.hierarchy
        self.assume, self.shape = subject.assume, subject.hierarchy.shape
        self.channels = self.h.decomposition.channels
        self.read = {s for s, _, gate in gates(self.h) if advantage in atoms(gate)}

    def bounds(self) -> dict[int, Bound]:
        """The bounds by sign of the advantage; 0 for any sign."""
        is_score = self.h.objective.estimator == "score"
        bound = self._score if is_score else self._alone if self._is_alone else self._coupled
        try:
            self._check(self.table)
            if not self.read or not (self._is_alone or is_score or self._is_apart(self.table)):
                return {0: bound(self.table)}
        except NotCertified as reason:
            return {0: Bound(why=str(reason))}
        return {side: self._attempt(bound, side) for side in SIDES}

    def _attempt(self, bound: Callable[[Lines], Bound], side: int) -> Bound:
        """The bound for advantages of one sign."""
        try:
            return bound(held(self.table, side))
        except NotCertified as reason:
            return Bound(why=str(reason))

    def _check(self, table: Lines) -> None:
        h = self.h
        if h.orthogonalise is not None:
            raise NotCertified("the effects of a least-squares fit have no bound that holds for every crossing")
        if self.known not in ("log", "split", "deviation"):
            raise NotCertified(
                "the densities are no log ratios, nor deviations on one channel, in units of the leaf measure, or have "
                "other slopes"
            )
        for stratum, channel, _ in gates(h):
            found = table[stratum, channel]
            if found is None:
                raise NotCertified(f"the breakpoints of the gate on {stratum} could not be put in order")
            values = [p.value for line in found for p in line.pieces]
            if any(map(reads_batch, values)):
                raise NotCertified(f"the gate on {stratum} reads more of the batch than its residual")
            if any(is_kinked(v) for v in values):
                raise NotCertified(f"the slope of the gate on {stratum} is not known")
        if not self._moves_one_channel():
            raise NotCertified("at r = 1 a token moves both channels")

    def _moves_one_channel(self) -> bool:
        """Whether a token at `r = 1` moves only one channel, as it does beside `r = 1`."""
        split = self.h.decomposition
        for leaf in self.h.leaves:
            at_0 = self.subject.at(leaf).with_signs({X: frozenset({0})})
            try:
                found = [cases(self.h.with_mass(split[c], leaf), at_0) for c in self.channels]
            except TooManyCases:
                return False
            if sum(any(not vanishes(c.slope(X)) for c in per_channel) for per_channel in found) > 1:
                return False
        return True

    @cached_property
    def _is_alone(self) -> bool:
        return len(self.h.order) == 1 and self.channels == ("",)

    def _is_apart(self, table: Lines) -> bool:
        """Whether tokens that enter one coefficient have advantages of one sign, because a gate there reads them."""
        inner = (u for u in self.h.order if u not in self.h.leaves)
        coupled = [u for u in inner if any(self._difference(u, c, table) for c in self.channels)]
        return all(self.read & {u, *self.h.coarser(u)} for u in coupled)

    # ------------------------------------------------------------ a score estimator

    def _score(self, table: Lines) -> Bound:
        """The bound of a score estimator, whose coefficients are `μ·𝒢·A`."""
        found = []
        for leaf in self.h.leaves:
            low, high = self._added(leaf, table)
            if self.known != "deviation":
                found.append(sympy.exp(high))
                continue
            found.append(1 + high)
            if not self.subject.proved("positivity"):
                found.append(-1 - low)
        if oo in found:
            return Bound(grows="𝒢" if self._is_alone else "")
        most = _largest(found, self.assume)
        return Bound(most, most if self._is_alone else None)

    def _added(self, leaf: Stratum, table: Lines) -> tuple[Any, Any]:
        """The least and the largest sum of all levels over a leaf."""
        ends = []
        for s in (leaf, *self.h.coarser(leaf)):
            level = contribution(s, table, self.subject, self.known)
            if level is None or any(map(reads_batch, level)):
                raise NotCertified(f"how much the gate on {s} adds has no bound that is known")
            ends.append(level)
        lows, highs = zip(*ends, strict=True)
        return -oo if -oo in lows else sum(lows), oo if oo in highs else sum(highs)

    # ------------------------------------------------------------ one gate that nothing is added to

    def _alone(self, table: Lines) -> Bound:
        """The bound if there is one gate: each token is pulled by its own advantage."""
        [stratum] = self.h.order
        found: list[tuple[Any, Any]] = []
        for channel, line, i in self.pieces(stratum, table):
            pulls = self._pulls(channel, line, i)
            if pulls is None:
                raise NotCertified(f"the slope of the gate on {stratum} rises and falls")
            if any(size == oo for _, size in pulls):
                return self._growing(line, i)
            for one in pulls:
                if not any(self._is_beyond(other, one) for other in found):
                    found = [*(other for other in found if not self._is_beyond(one, other)), one]
        most = _largest([self._product(one) for one in found], self.assume) if found else sympy.Integer(0)
        if reads_batch(most):
            raise NotCertified(f"the gate on {stratum} reads more of the batch than its residual")
        return Bound(most, most)

    def pieces(self, stratum: Stratum, table: Lines) -> Iterator[tuple[str, Line, int]]:
        """Yields the pieces that residuals reach, for the gate of a root; with channel, line and number."""
        least = domain(self.h, stratum, self.known)[0]
        for channel in self.channels:
            for line in table[stratum, channel] or ():
                for i, p in enumerate(line.pieces):
                    above = least == -oo or p.high == oo or line.assume.signs(p.high - least)
                    # an interval that ends where residuals begin contains none
                    if above is True or not above <= ({-1} if least == 0 and p.is_point else {-1, 0}):
                        yield channel, line, i

    def _pulls(self, channel: str, line: Line, i: int) -> list[tuple[Any, Any]] | None:
        """`|g'|` and the size of `F'·∂𝒢/∂D` where their product is largest on a piece; None if that is not known.

        The size is a ratio; where ratios are exponentials, it is the ratio's logarithm.
        """
        p, assume = line.pieces[i], line.assume
        slope = p.slope
        signs = assume.signs(slope)
        if signs == {0}:
            return []
        up = -1 if channel == "-" else 1
        is_log = self.known != "deviation"
        if not slope.has(RHO) and signs in ({1}, {-1}):
            steep = slope if signs == {1} else -slope
            if not is_log:
                return [(steep, oo if p.high == oo else 1 + p.high)]
            most = replace(p, value=up * p.value).highest(assume)
            return None if most is None else [(steep, most if most == oo else cancelled(most))]
        pull = slope * (sympy.exp(up * p.value) if is_log else 1 + RHO)
        direction = Piece(p.low, p.high, pull, sympy.diff(pull, RHO)).direction(assume)
        if direction is None or signs not in ({1}, {-1}):
            return None
        falls = direction * next(iter(signs)) < 0
        end = p.low if falls else p.high
        value = pull.subs(RHO, end)
        if end in (oo, -oo) or value.has(sympy.zoo, sympy.nan):
            return None
        return [(next(iter(signs)) * value, sympy.Integer(0 if is_log else 1))]

    def _product(self, pulled: tuple[Any, Any]) -> Any:
        steep, size = pulled
        return steep * (size if self.known == "deviation" else sympy.exp(size))

    def _is_beyond(self, one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
        """Whether `one` is at least as steep as `other`, and its ratio at least as large."""
        return not any(-1 in self.assume.signs(a - b) for a, b in zip(one, other, strict=True))

    def _growing(self, line: Line, i: int) -> Bound:
        """The bound, in words, for a piece on which the ratio passes without bound."""
        p = line.pieces[i]
        slope = p.slope
        step = -1 if p.high == oo else 1
        while 0 <= i + step < len(line.pieces) and line.pieces[i + step].continues(p):
            i += step  # 0 is a breakpoint of every gate
        end = line.pieces[i].low if p.high == oo else line.pieces[i].high
        if self.known == "split" and end not in (oo, -oo) and -1 in line.assume.signs(end):
            end = sympy.Integer(0)  # what lies below belongs to the other channel
        ratio = 1 + end if self.known == "deviation" else sympy.exp(end)
        size = slope if line.assume.signs(slope) == {1} else -slope
        is_ratio = self.known == "deviation" or vanishes(p.value - RHO)
        grows = "r" if is_ratio else "𝒢"
        grows = grows if size == 1 else f"({text(size)})*{grows}" if size.is_Add else f"{text(size)}*{grows}"
        where = "" if end in (oo, -oo) or ratio == 0 else f"r {'>' if p.high == oo else '<'} {text(ratio)}"
        return Bound(oo, oo, grows, where)

    # ------------------------------------------------------------ several levels

    def _coupled(self, table: Lines) -> Bound:
        """The bound over several levels: the sum over strata of differences of slopes, times the largest ratio."""
        if any(k.normaliser == "kept" for k in self.h.objective.kept):
            raise NotCertified("the objective counts the tokens that are kept, and kernels weigh all of them")
        least = self._of_one_ratio(table)
        if least is not None and least.grows:
            return least
        reached = None if least is None else least.most
        try:
            return Bound(self._summed(table), reached)
        except TooLong as reason:
            return Bound(oo, reached, why=str(reason))

    def _summed(self, table: Lines) -> Any:
        """The upper bound over all strata; `oo` if ratios have no bound."""
        highs = [oo if self.known == "deviation" else self._added(leaf, table)[1] for leaf in self.h.leaves]
        if oo in highs:
            return oo
        _check_length(highs)
        # a single root is coarser than all that tokens share; none of several roots is
        shared = self.h.roots if len(self.h.roots) == 1 else [u for u in self.h.order if u not in self.h.leaves]
        ratio = sympy.exp(_largest([self._lifted(high, u) for high in highs for u in shared], self.assume))
        found = []
        for leaf, channel in itertools.product(self.h.leaves, self.channels):
            terms = []
            for u in (leaf, *self.h.coarser(leaf)):
                if differences := self._difference(u, channel, table):
                    most = _largest([self._lifted(d, u) for d in differences], self.assume)
                    terms.append(most * self._weighed(u, leaf))
                    _check_length(terms)
            found.append(sum(terms, sympy.Integer(0)))
        most = _largest(found, self.assume) * ratio
        _check_length([most])
        return most

    def _difference(self, u: Stratum, channel: str, table: Lines) -> list[Any]:
        """Candidates for `sup |G_u - Σ_v c_u·G_v|` over the tokens that lie over `u`; [] if it is 0."""
        found = []
        for leaf in self.shape.leaves_over(u):
            between = [v for v in (leaf, *self.h.coarser(leaf)) if u in self.shape.moebius(v)]
            factors = {u: 1, **{v: -self.shape.moebius(v)[u] for v in between}}
            ends = {v: self._slopes(v, channel, table) for v in factors}
            for sign in (1, -1):
                chosen = [[c * sign * g for g in ends[v][c * sign > 0]] for v, c in factors.items()]
                found += [sympy.expand(sum(one)) for one in itertools.product(*chosen)]
        found = extremes(list(dict.fromkeys(found)), self.assume, 1)
        return [] if all(vanishes(v) for v in found) else found

    def _slopes(self, stratum: Stratum, channel: str, table: Lines) -> tuple[list[Any], list[Any]]:
        ends = slopes(stratum, channel, table, self.subject, self.known)
        if ends is None or oo in ends[1] or -oo in ends[0] or any(map(reads_batch, (*ends[0], *ends[1]))):
            raise NotCertified(f"how steep the gate on {stratum} is has no bound that is known")
        return ends

    def _lifted(self, value: Any, u: Stratum) -> Any:
        """A bound for all elements over one element of `u`: counts that may differ there become their extremes."""
        value = value.replace(sympy.Piecewise, lambda *branches: sympy.Max(*(v for v, _ in branches)))
        for s in sorted(value.free_symbols, key=str):
            atom = from_sympy(s)
            place = read_at(atom)
            if not isinstance(place, Stratum) or place in (u, *self.h.coarser(u)) or place == Stratum(BATCH):
                continue
            signs = self.assume.signs(sympy.diff(value, s))
            if isinstance(atom, Count) and -1 not in signs and u in self.h.coarser(place):
                value = value.subs(s, symbol(Count(atom.of, u)))
            elif isinstance(atom, Count) and 1 not in signs and self.assume.presence.present(atom.of, place):
                value = value.subs(s, 1)
            else:
                raise NotCertified(f"{atom} may differ among what lies over one {u}")
        return value

    def _weighed(self, u: Stratum, leaf: Stratum) -> Any:
        """`E_m[μ/m | u]·m/μ`: 1 if the objective weighs what lies over one element of `u` as the kernels do."""
        weight = to_sympy(self.h.objective.spelled_out(self.h.leaves, self.h.rows))
        shares = {o: cancelled(weight / to_sympy(self.h.masses[o])) for o in self.shape.leaves_over(u)}
        fixed = {u, *self.h.coarser(u), Stratum(BATCH), None}
        own = shares[leaf]
        read = {read_at(from_sympy(t)) for s in shares.values() for t in s.free_symbols}
        if u == leaf or (read <= fixed and all(vanishes(own - s) for s in shares.values())):
            return 1
        # a count over the batch is one number
        fixed_at = {t: symbol(Reading(t.name)) for t in weight.free_symbols if read_at(from_sympy(t)) == Stratum(BATCH)}
        total: Any = 0
        for o in shares:
            one = fibre_sum(weight.subs(fixed_at), o, u, self.assume.populations)
            if one is None:
                raise NotCertified(f"the objective does not weigh what lies over one {u} as the kernels do")
            total += one.subs({v: t for t, v in fixed_at.items()})
        return cancelled(total / to_sympy(self.h.masses[u]) / own)

    def _of_one_ratio(self, table: Lines) -> Bound | None:
        """The amplification if all ratios are one number: the root gate's, on its steepest piece; None if unknown."""
        if len(self.h.roots) > 1 or not all(self._adds_nothing(s, table) for s in self.h.order[1:]):
            return None
        best: tuple[Any, Any] | None = None
        for channel, line, i in self.pieces(self.h.roots[0], table):
            for one in self._pulls(channel, line, i) or ():
                if one[1] == oo:
                    return self._growing(line, i)
                steeper = {1} if best is None else self.assume.signs(one[0] - best[0])
                if steeper in ({1}, {0, 1}) or (best is not None and self._is_beyond(one, best)):
                    best = one
        least = sympy.Integer(0) if best is None else self._product(best)
        return None if reads_batch(least) else Bound(least, least)

    def _adds_nothing(self, stratum: Stratum, table: Lines) -> bool:
        """Whether a gate is 0 at residual 0."""
        lines = (line for c in self.channels for line in table[stratum, c] or ())
        return all(vanishes(p.value.subs(RHO, 0)) for line in lines for p in line.pieces if p.low == p.high == 0)


def _check_length(values: list[Any]) -> None:
    """Raises TooLong if the formulas, each taken once, name more than `MOST_NAMES` counts and parameters."""
    if sum(e.is_Symbol for v in dict.fromkeys(values) for e in sympy.preorder_traversal(v)) > MOST_NAMES:
        raise TooLong


def _largest(values: list[Any], assume: Assumptions) -> Any:
    """The largest of some sums, with their common terms outside the maximum."""
    _check_length(values)
    found = extremes(list(dict.fromkeys(values)), assume, 1)
    shared = set.intersection(*(set(sympy.Add.make_args(v)) for v in found))
    return sum(shared, sympy.Integer(0)) + sympy.Max(*(v - sum(shared, sympy.Integer(0)) for v in found))
