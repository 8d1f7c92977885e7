"""Random hierarchies over the whole language, and random formulas for every place in a hierarchy.

A `Setting` is a shape with its kernels. A `Formulas` draws formulas for one place: tokens, the elements of a stratum
(for gates, `of=` and `over=`), or advantages. Judges put the formulas into hierarchies. Many cases are right formulas
with one part changed (`mutated`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from fibration import (
    Attribute,
    Decomposition,
    Fibration,
    Gate,
    Hierarchy,
    MarkovKernel,
    Objective,
    Parameter,
    absolute,
    advantage,
    after,
    atan,
    before,
    clip,
    constant_normaliser,
    count,
    deviation,
    exp,
    expm1,
    gated,
    identity_gate,
    largest,
    log,
    log1p,
    log_prob,
    log_ratio,
    maximum,
    mean,
    minimum,
    policies,
    populated,
    position,
    quantile,
    ratio_deviation,
    reward,
    sigmoid,
    sign,
    signed_log_ratio,
    softplus,
    some,
    sqrt,
    stop,
    strata,
    tanh,
    token_log_ratio,
    token_mean,
    total,
    trajectory_mean,
    uniform,
    where,
)
from fibration.errors import FibrationError
from fibration.language.atoms import Stratum
from fibration.language.expressions import Apply, Expression, Number, as_expression
from fibration.language.traversal import substitute

token, turn, trajectory, prompt_group, domain, text, image, batch = strata(
    "token turn trajectory prompt_group domain text image batch"
)
current, old, rollout, reference = policies("current old rollout reference")
x = token_log_ratio


@dataclass(frozen=True)
class Setting:
    """Strata with kernels that reflect; `rows` of all are trajectories."""

    name: str
    leaves: tuple[Stratum, ...]
    fibrations: tuple[Fibration, ...]
    groups: tuple[Stratum, ...] = ()
    assume: tuple[Any, ...] = ()

    @property
    def strata(self) -> tuple[Stratum, ...]:
        found = dict.fromkeys(s for f in self.fibrations for s in (f.source, f.target))
        return tuple(found) or self.leaves

    @property
    def within(self) -> tuple[Stratum, ...]:
        """The strata between tokens and rows."""
        return (turn,) if turn in self.strata else ()

    @property
    def below(self) -> tuple[Stratum, ...]:
        """What every token lies over, and rows do: groups, domains, the batch."""
        return tuple(s for s in (prompt_group, domain) if s in (*self.strata, *self.groups)) + (batch,)

    def tokens(self, over: Stratum) -> Expression:
        """How many tokens lie over an element, of all kinds."""
        return _sum([count(leaf, over=over) for leaf in self.leaves])

    @property
    def scale(self) -> Expression:
        return 1 / self.tokens(trajectory)


def _sum(parts: Sequence[Any]) -> Any:
    found = parts[0]
    for p in parts[1:]:
        found = found + p
    return found


def _tree(*below: Fibration, groups: tuple[Stratum, ...] = (), populations: bool = False) -> Setting:
    both = 1 / (count(text, over=trajectory) + count(image, over=trajectory))
    own = tuple(Fibration(s, trajectory, kernel=MarkovKernel(both)) for s in (text, image))
    assume = (populated(image, over=trajectory),) if populations else ()
    return Setting("tree", (text, image), (*own, *below), groups, assume)


SETTINGS = (
    Setting("tokens", (token,), (), (prompt_group,)),
    Setting("chain", (token,), (Fibration(token, trajectory, kernel=uniform()),), (prompt_group,)),
    Setting("groups", (token,), (Fibration(token, trajectory, kernel=uniform()), Fibration(trajectory, prompt_group, kernel=uniform()))),
    Setting("domains", (token,), (Fibration(token, trajectory, kernel=uniform()), Fibration(trajectory, domain, kernel=uniform())), (prompt_group,)),
    Setting("turns", (token,), (Fibration(token, turn, kernel=uniform()), Fibration(turn, trajectory, kernel=uniform())), (prompt_group,)),
    _tree(groups=(prompt_group,)),
    _tree(groups=(prompt_group,)),
    _tree(groups=(prompt_group,), populations=True),
    _tree(Fibration(trajectory, prompt_group, kernel=uniform())),
)  # fmt: skip

PARAMETERS = (
    Parameter("epsilon", default=0.2, upper=1),
    Parameter("C", default=2, lower=1),
    Parameter("beta", default=0.1),
    Parameter("bias", default=0.5, lower=-1, upper=1),
)
NUMBERS = (0, 1, 1, 2, -1, Fraction(1, 2), 3, 7, 30, Fraction(1, 3), Fraction(-1, 4), -40, Fraction(1, 4096), 100)
THRESHOLDS = (0, 0, 1, 1, 2, 3, 7, 12, 30, Fraction(1, 2), -1, -2, -40, Fraction(1, 4096), 1000)


def attributes(setting: Setting) -> tuple[Attribute, ...]:
    found = [Attribute("v", on=trajectory, positive=False), Attribute("u", on=trajectory, upper=4)]
    if len(setting.leaves) == 1:
        found += [Attribute("w", on=token), Attribute("z", on=token, positive=False, lower=0, upper=2)]
    return tuple(found)


@dataclass
class Formulas:
    """Draws formulas of a setting. `policies`: whose log-probs may be read; `moving`: the current policy's too."""

    setting: Setting
    rng: random.Random
    moving: bool = True
    with_reward: bool = False
    with_advantage: bool = True
    depth_of_statistics: int = 2
    passed: tuple[Any, ...] = field(default=(rollout,))

    def pick(self, *options: Any) -> Any:
        return self.rng.choice(options)

    # ------------------------------------------------------------ atoms

    def of_token(self) -> Expression:
        """What one token has."""
        log_probs = [log_prob(p) for p in (old, *self.passed)]
        found: list[Any] = [*log_probs, log_probs[0] - log_probs[-1]]
        if self.moving:
            found += [x, x, log_prob(current)]
        if self.with_advantage and not self.with_reward:
            found += [advantage]
        if self.with_reward:
            found += [reward, reward]
        found += [a for a in attributes(self.setting) if a.on == token]
        return self.pick(*found)

    def of_row(self) -> Expression:
        """What every token of a row has, and other rows may have otherwise."""
        s = self.setting
        counted = [count(leaf, over=trajectory) for leaf in s.leaves] + [count(trajectory, over=g) for g in s.below]
        counted += [count(t, over=trajectory) for t in s.within] + [
            count(leaf, over=g) for leaf in s.leaves for g in s.below[:1]
        ]
        counted += [a for a in attributes(s) if a.on == trajectory]
        counted += [total(a, over=trajectory) for a in attributes(s) if a.on == token]
        return self.pick(*counted)

    def constant(self) -> Expression:
        if self.rng.random() < 0.3:
            return self.pick(*PARAMETERS)
        return as_expression(self.pick(*NUMBERS))

    # ------------------------------------------------------------ numbers and conditions

    def number(self, depth: int, place: Stratum | None = None, gathered: int | None = None) -> Expression:
        """A formula read at a token, or at an element of `place` (the rows, or what rows lie over)."""
        gathered = self.depth_of_statistics if gathered is None else gathered
        if depth <= 0:
            return self.atom(place, gathered)
        a = self.number(depth - 1, place, gathered)
        b = self.number(self.rng.randrange(depth), place, gathered)
        match self.rng.randrange(13):
            case 0 | 1:
                return a + b
            case 2:
                return a - b
            case 3 | 4:
                return a * b
            case 5:
                return a / self.pick(b, 1 + absolute(b), b, maximum(b, Fraction(1, 2)))
            case 6 | 7:
                return where(self.condition(depth - 1, place, gathered), a, b)
            case 8:
                return self.pick(minimum, maximum)(a, b)
            case 9:
                return clip(a, -self.pick(*PARAMETERS[:2]), self.pick(*PARAMETERS[:3]))
            case 10:
                return self.pick(exp, exp, tanh, sigmoid, softplus, atan, expm1)(a)
            case 11:
                return self.pick(log, log1p, sqrt)(self.pick(a, absolute(a), exp(a), 1 + a * a))
            case _:
                return self.pick(-a, absolute(a), sign(a), a**2, self.constant() * a)

    def atom(self, place: Stratum | None, gathered: int) -> Expression:
        roll = self.rng.random()
        if gathered > 0 and roll < 0.35:
            return self.statistic(place, gathered)
        if roll < 0.5:
            return self.constant()
        if place is None and roll < 0.8:
            return self.of_token()
        return self.of_row() if place in (None, trajectory) else self.of_group(place)

    def of_group(self, place: Stratum) -> Expression:
        """What an element that rows lie over has, or one of a branch or of a turn."""
        s = self.setting
        if place in s.leaves:
            return self.of_row()
        if place in s.within:
            return self.pick(count(s.leaves[0]), self.of_row())
        return self.pick(count(trajectory), _sum([count(leaf) for leaf in s.leaves]))

    def condition(self, depth: int, place: Stratum | None = None, gathered: int | None = None) -> Expression:
        gathered = self.depth_of_statistics if gathered is None else gathered
        roll = self.rng.random()
        if depth > 0 and roll < 0.25:
            a, b = (self.condition(depth - 1, place, gathered) for _ in range(2))
            return self.pick(a & b, a | b, ~a)
        if gathered > 0 and roll < 0.35:
            return self.statistic(place, gathered, kind="some")
        a = self.number(max(depth - 1, 0), place, gathered)
        b = as_expression(self.pick(*THRESHOLDS)) if self.rng.random() < 0.7 else self.number(0, place, gathered)
        return self.pick(a < b, a <= b, a > b, a >= b)

    # ------------------------------------------------------------ statistics and order

    def statistic(self, place: Stratum | None, gathered: int, kind: str | None = None) -> Expression:
        """A statistic over the row or what it lies over, or what comes before a token."""
        s, rng = self.setting, self.rng
        if kind is None and place is None and rng.random() < 0.3:
            return self.order(gathered)
        over = self.pick(
            *(trajectory, trajectory, *s.below) if place in (None, trajectory, *s.leaves, *s.within) else (place, batch)
        )
        each: list[Stratum | None] = [None, None]
        if over != trajectory:
            each += [trajectory, trajectory]
        each += [*s.within, *(s.leaves if len(s.leaves) > 1 else ())] if over in (trajectory, *s.below) else []
        of = self.pick(*each)
        depth = rng.randrange(2)
        if kind == "some":
            return some(self.condition(depth, of, gathered - 1), over=over, of=of)
        f = self.number(depth, of, gathered - 1)
        word = self.pick("total", "mean", "mean", "largest", "least", "deviation", "quantile", "number")
        if word == "quantile" and of is None:
            return quantile(f, self.pick(Fraction(1, 2), PARAMETERS[0], 0, 1), over=over)
        if word == "mean" and of == trajectory and place in (None, trajectory) and rng.random() < 0.4:
            return mean(f, over=over, of=of, others=True)
        made: dict[str, Callable[[], Expression]] = {
            "total": lambda: total(f, over=over, of=of), "mean": lambda: mean(f, over=over, of=of),
            "largest": lambda: largest(f, over=over, of=of), "least": lambda: -largest(-f, over=over, of=of),
            "deviation": lambda: deviation(f, over=over, of=of), "quantile": lambda: mean(f, over=over, of=of),
            "number": lambda: total(where(self.condition(0, of, gathered - 1), 1, 0), over=over, of=of),
        }  # fmt: skip
        return made[word]()

    def order(self, gathered: int) -> Expression:
        s = self.setting
        if s.within and self.rng.random() < 0.4:
            f = self.number(0, turn, gathered - 1)
            return self.pick(
                position(over=trajectory, of=turn),
                before(f, over=trajectory, of=turn),
                after(f, over=trajectory, of=turn),
            )
        over = self.pick(trajectory, *s.within)
        f = self.number(self.rng.randrange(2), None, gathered - 1)
        discount = self.pick(1, 1, Fraction(1, 2), 0, PARAMETERS[0])
        return self.pick(
            position(over=over), before(f, over=over, discount=discount), after(f, over=over, discount=discount)
        )

    # ------------------------------------------------------------ near what is right

    def mutated(self, e: Expression, depth: int = 1) -> Expression:
        """A formula with one of its parts replaced, stopped, or put under a condition."""
        places = list(parts(e))
        path, part = self.rng.choice(places)
        if part.is_condition:
            new = self.pick(self.condition(depth), ~part, part & self.condition(0), part | self.condition(0))
        else:
            new = self.pick(
                self.number(depth), where(self.condition(depth), part, self.number(0)), stop(part), part * self.constant(),
                part + self.number(0), -part, maximum(part, self.number(0)),
            )  # fmt: skip
        return replaced(e, path, new)

    # ------------------------------------------------------------ what is around

    def hierarchy(self, **more: Any) -> Hierarchy:
        """A hierarchy of the setting whose gates are the identity, but for what is given. SpecError for what cannot be read."""
        s = self.setting
        fields: dict[str, Any] = dict(
            name="drawn", fibrations=s.fibrations, gates={v: identity_gate() for v in s.strata}, groups=s.groups,
            decomposition=log_ratio(scale=s.scale), objective=self.pick(token_mean(), trajectory_mean()), assume=s.assume,
        )  # fmt: skip
        fields["gates"] = {**fields["gates"], **more.pop("gates", {})}
        return Hierarchy(**{**fields, **more})

    def split(self) -> Decomposition:
        scale = self.setting.scale
        return self.pick(log_ratio(scale=scale), signed_log_ratio(scale=scale), ratio_deviation(scale=scale))

    def decomposition(self) -> Decomposition:
        """One of `split`; or with one part whose slopes a `stop` changes; or with parts that are stopped or turned."""
        made, kept = self.split(), self.rng.random() < 0.6
        if self.rng.random() < 0.2:
            return made
        places = [*made.channels, "R"]
        chosen = {self.pick(*places)} if kept else {p for p in places if self.rng.random() < 0.6}
        densities = {c: self.restopped(e, x, kept) if c in chosen else e for c, e in made.densities}
        bent = {g: self.restopped(g, g, kept) for g in map(gated, made.channels if "R" in chosen else ())}
        return Decomposition(densities, substitute(made.recovery, bent), made.scale)

    def restopped(self, e: Expression, by: Expression, kept: bool) -> Expression:
        """A formula with its values (`kept`) and other slopes, or with other values; on a side or near 0 of `by`."""
        other = [2 * stop(e) - e, 3 * e - 2 * stop(e), stop(e), (e + stop(e)) / 2]
        other += [] if kept else [-e, 2 * e, PARAMETERS[3] * e]
        inside = self.pick(
            by >= 0, absolute(by) < 0.1, absolute(by) <= PARAMETERS[0], advantage > 0, (by >= 0) & (by <= 0)
        )
        made = self.pick(*other)
        return self.pick(made, where(inside, e, made), where(inside, e, made), where(inside, made, e))  # type: ignore[no-any-return]

    def objective(self) -> Objective:
        return self.pick(token_mean(), trajectory_mean(), constant_normaliser(8))  # type: ignore[no-any-return]

    def gate(self, formula: Expression) -> Gate:
        return Gate(formula)


# ---------------------------------------------------------------- parts of formulas

Path = tuple[int, ...]


def parts(e: Expression, path: Path = ()) -> Any:
    """Every part of an expression, and the way to it; statistics are whole."""
    yield path, e
    if isinstance(e, Apply):
        for k, a in enumerate(e.arguments):
            if not (e.operator == "**" and k == 1):
                yield from parts(a, (*path, k))


def replaced(e: Expression, path: Path, new: Expression) -> Expression:
    if not path:
        return new
    assert isinstance(e, Apply)
    arguments = list(e.arguments)
    arguments[path[0]] = replaced(arguments[path[0]], path[1:], new)
    return Apply(e.operator, tuple(arguments))


def drawn(make: Callable[[random.Random], Any], rng: random.Random, tries: int = 200) -> Any:
    """What `make` gives, drawn again where the language refuses it."""
    for _ in range(tries):
        try:
            return make(rng)
        except FibrationError:
            continue
    raise AssertionError("nothing that the language takes was drawn")


def simpler(e: Expression) -> Any:
    """Formulas with one part less, the smallest first."""
    found = []
    for path, part in parts(e):
        if isinstance(part, Apply):
            found += [replaced(e, path, a) for a in part.arguments if a.is_condition == part.is_condition]
        if not part.is_condition and not isinstance(part, Number):
            found += [replaced(e, path, as_expression(n)) for n in (0, 1)]
    return sorted(dict.fromkeys(found), key=lambda f: f.size if hasattr(f, "size") else 1)
