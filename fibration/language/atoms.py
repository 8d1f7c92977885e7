"""The atoms of the language: strata, counts, attributes, parameters, and what a gate reads at its element.

Every quantity is read *at an element*: at the element of the gate's stratum, or at the source element of a kernel.
An atom of a coarser stratum means the value at the one element that lies below the current one.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from fibration.errors import ParameterError, SpecError, shown
from fibration.language.expressions import Expression, Number, Operand, as_expression
from fibration.language.operators import CALLED
from fibration.language.traversal import atoms, transform

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}\Z")
BATCH = "batch"

# Words of the expression grammar, and of the generated code, that a user's object may not take.
RESERVED = frozenset({
    *CALLED, "and", "or", "not",
    "residual", "advantage", "token_log_ratio", "mass", "gated", "density", "count", "total", "source", "target",
    "channel_sign", "pull", "current", "old", "mean", "largest", "some", "quantile",
    "objective", "coefficients", "log_ratio", "log_prob", "old_log_prob", "cotangent", "torch",
})  # fmt: skip
INDEX_WORDS = frozenset({"mask", "offsets", "attributes", "device"})  # arguments of an index beside strata
NAME_RULE = "a letter, then letters, digits or underscores, at most 63, and no word of the language"


def check_name(name: object, what: str) -> str:
    """Names become identifiers of generated code, so they are validated on entry."""
    if not isinstance(name, str) or not NAME.match(name) or keyword.iskeyword(name) or name in RESERVED or "__" in name:
        raise SpecError(f"{what} cannot be called {name!r}", required=NAME_RULE, remedy="choose another name")
    return name


Name = Annotated[str, BeforeValidator(lambda v: check_name(v, "an object of a hierarchy"))]


class Declared(BaseModel):
    """A frozen, validated declaration that prints as it was written."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    def __str__(self) -> str:
        return repr(self)


class FrozenMap(dict[Any, Any]):
    """A hashable dictionary that keeps its order and cannot be changed."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:  # pickle and deepcopy would fill it item by item
        return type(self), (dict(self),)

    def _readonly(self, *args: object, **kwargs: object) -> None:
        raise TypeError("what is declared is immutable: declare another, or use hierarchy.replace(...)")

    __setitem__ = __delitem__ = update = pop = clear = setdefault = popitem = _readonly  # type: ignore[assignment]
    __ior__ = _readonly  # type: ignore[assignment]


class Stratum(Declared):
    """A finite set of one kind of element: tokens, trajectories, domains (`B_k`, def:uniform_fibration)."""

    name: Name

    def __init__(self, name: str) -> None:
        super().__init__(name=check_name(name, "a stratum"))  # type: ignore[call-arg]
        if name in INDEX_WORDS:
            raise SpecError(f"a stratum cannot be called {name!r}", required="another name: op.index(...) takes it")

    def __repr__(self) -> str:
        return self.name

    # Everything is looked up by strata, often in inner loops, and what pydantic would compare and hash is the same.
    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is type(self) and other.name == self.name)  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self.name)


def strata(names: str) -> tuple[Stratum, ...]:
    """Declare several strata: `token, trajectory = strata("token trajectory")`."""
    given: object = names.replace(",", " ").split() if isinstance(names, str) else names
    words = list(given) if isinstance(given, Iterable) else []
    if not words or len(set(map(str, words))) != len(words):
        raise SpecError(
            f"strata({names!r})", required="one or more different names", remedy="strata('token trajectory')"
        )
    return tuple(Stratum(n) for n in words)


class Policy(Declared):
    """A policy whose log-probs of the sampled tokens a call is given: `current` is trained, all others are frozen.

    `current` and `old` are those of every call; others are passed by name, `policies={"rollout": log_probs}`.
    """

    name: str

    def __init__(self, name: str) -> None:
        super().__init__(name=name if name in (CURRENT, OLD) else check_name(name, "a policy"))  # type: ignore[call-arg]

    @property
    def is_frozen(self) -> bool:
        return self.name != CURRENT

    @property
    def is_passed(self) -> bool:
        """Whether a call has to be given it beside the log-probs that all calls take."""
        return self.name not in (CURRENT, OLD)

    def __repr__(self) -> str:
        return self.name


CURRENT, OLD = "current", "old"


def policies(names: str) -> tuple[Policy, ...]:
    """Declare policies: `current, old, rollout = policies("current old rollout")`.

    `current` is π_θ, `old` the one that ratios are taken to, others are the user's: the rollout engine's, a reference.
    """
    given: object = names.replace(",", " ").split() if isinstance(names, str) else names
    words = list(given) if isinstance(given, Iterable) else []
    if not words or len(set(map(str, words))) != len(words):
        raise SpecError(
            f"policies({names!r})", required="one or more different names", remedy="policies('current old rollout')"
        )
    return tuple(Policy(n) for n in words)


@dataclass(frozen=True)
class Place:
    """Stands for the source or the target stratum of the fibration that a kernel will be put on."""

    name: str

    def __repr__(self) -> str:
        return self.name


SOURCE, TARGET = Place("source"), Place("target")
Where = Stratum | Place | None


def _over(place: Where) -> str:
    return "" if place is None else f", over={place!r}"


def _of(of: object, what: str) -> Stratum | Place:
    if isinstance(of, (Stratum, Place)):
        return of
    remedy = "declare it: token, trajectory = strata('token trajectory')"
    raise SpecError(f"{what} takes a stratum, not {of!r}", remedy=remedy)


@dataclass(frozen=True, repr=False)
class Count(Expression):
    """How many elements of `of` lie over the current element of `over`. Written `count(of, over=...)`."""

    of: Stratum | Place
    over: Where = None

    def text(self) -> str:
        return f"count({self.of!r}{_over(self.over)})"


def count(of: Stratum | Place, over: Where = None) -> Count:
    """Number of `of` elements over the `over` element at or below the current one (None: the current one itself)."""
    return Count(_of(of, "count"), None if over is None else _of(over, "count(..., over=)"))


class _Named(Declared, Expression):
    """A declaration that is an atom, and is written by its name."""

    name: Name

    def text(self) -> str:
        return self.name

    __repr__ = __str__ = text


class Attribute(_Named):
    """A number that the user gives for every element of a stratum, when the index is built.

    `positive=True` and `lower <= value <= upper` are assumptions of the proofs, and are checked on the data. The bounds
    belong to the range, as probabilities of exactly 1 do; `None` means unbounded.
    """

    on: Stratum
    positive: bool = True
    lower: float | None = None
    upper: float | None = None

    def __init__(
        self,
        name: str,
        *,
        on: Stratum,
        positive: bool = True,
        lower: float | None = None,
        upper: float | None = None,
    ) -> None:
        super().__init__(  # type: ignore[call-arg]
            name=check_name(name, "an attribute"), on=on, positive=positive, lower=lower, upper=upper
        )
        least = max(b for b in (self.lower, 0.0 if positive else None, -math.inf) if b is not None)
        if not all(b is None or math.isfinite(b) for b in (self.lower, self.upper)):
            raise SpecError(
                f"attribute '{name}' has the range {self.range}", required="bounds that are finite, or None"
            )
        if self.upper is not None and not least < self.upper:
            raise SpecError(f"attribute '{name}' has the empty range {self.range}", required="lower < upper")
        if self.lower is not None and positive is not (self.lower > 0):
            raise SpecError(
                f"attribute '{name}' is declared with positive={positive}, and lower={self.lower:g}",
                required="positive=True with a lower bound above 0, positive=False with any other",
                remedy="leave lower out for all values above 0; positive=False, lower=0 has 0 itself too",
            )

    @property
    def range(self) -> str:
        low = "(0" if self.positive and self.lower is None else "(-inf" if self.lower is None else f"[{self.lower:g}"
        return f"{low}, {'inf)' if self.upper is None else f'{self.upper:g}]'}"

    @property
    def ends(self) -> tuple[Fraction | None, Fraction | None]:
        """Exact bounds: a float counts as the decimal that it prints as. 0 is one where values are positive."""
        low, high = (None if b is None else Fraction(str(b)) for b in (self.lower, self.upper))
        return Fraction(0) if low is None and self.positive else low, high

    def nearest(self, value: Fraction) -> Fraction:
        """What is nearest to a value in the range; where values are positive, `value` is."""
        low, high = self.ends
        value = value if low is None else max(value, low)
        return value if high is None else min(value, high)

    @property
    def usual(self) -> float:
        """A value of it: 1, or what is nearest to 1 in its range."""
        return float(self.nearest(Fraction(1)))

    def is_outside(self, value: Any) -> Any:
        """Whether a number is, or which of an array are, outside the range."""
        outside = (value <= 0) if self.positive else (value != value)
        outside = outside if self.lower is None else outside | (value < self.lower)
        return outside if self.upper is None else outside | (value > self.upper)

    def declaration(self) -> str:
        """The call that declares this attribute."""
        bounds = "".join(f", {k}={v!r}" for k in ("lower", "upper") if (v := getattr(self, k)) is not None)
        return f"Attribute({self.name!r}, on={self.on}, positive={self.positive}{bounds})"


@dataclass(frozen=True, repr=False)
class Total(Expression):
    """The sum of an attribute over the current element of `over`. Written `total(attribute, over=...)`."""

    attribute: Attribute
    over: Where = None

    @property
    def of(self) -> Stratum:
        """What is summed over, as `Count.of` is what is counted."""
        return self.attribute.on

    def text(self) -> str:
        return f"total({self.attribute.name}{_over(self.over)})"


def total(summed: Attribute | Expression, over: Where = None) -> Total | Aggregate:
    """Sum over the `over` element at or below the current one.

    Of an attribute it is an additive measure, like `count`; of any other formula a statistic of tokens, detached.
    """
    if not isinstance(summed, Expression):
        raise SpecError(f"total takes an Attribute or a formula, not {summed!r}", remedy="tokens are counted by count")
    if not isinstance(summed, Attribute):
        return _aggregate("total", summed, over)
    return Total(summed, None if over is None else _of(over, "total(..., over=)"))


def _as_default(value: object) -> object:
    try:
        if isinstance(value, Mapping):
            return FrozenMap({str(k): float(v) for k, v in value.items()})
        if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            return None if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise SpecError(f"a parameter's default is a number, or one per channel, not {shown(value)}")


Default = Annotated[Any, BeforeValidator(_as_default), PlainSerializer(lambda v: dict(v) if isinstance(v, dict) else v)]


class Parameter(_Named):
    """A number that is chosen when the operator is called: a budget, a clip range, a temperature.

    `lower` and `upper` are strict bounds, `lower < value < upper`. They are assumptions of the proofs, so they are
    strict (a budget of exactly 0 lets nothing pass, and first-order agreement would be false there), and every value
    is checked against them. `None` means unbounded. `per_channel=True` gives each sign channel its own value. A value
    may also be given per element of the stratum whose gate reads it, or of the coarser stratum named by `on`.
    """

    default: Default = None
    lower: float | None = 0.0
    upper: float | None = None
    per_channel: bool = False
    on: Stratum | None = None

    def __init__(
        self,
        name: str,
        *,
        default: float | Mapping[str, float] | None = None,
        lower: float | None = 0.0,
        upper: float | None = None,
        per_channel: bool = False,
        on: Stratum | None = None,
    ) -> None:
        super().__init__(  # type: ignore[call-arg]
            name=check_name(name, "a parameter"),
            default=default,
            lower=lower,
            upper=upper,
            per_channel=per_channel,
            on=on,
        )
        if self.lower is not None and self.upper is not None and not self.lower < self.upper:
            raise SpecError(f"parameter '{name}' has the empty range {self.range}", required="lower < upper")
        if isinstance(self.default, dict):
            if set(self.default) != {"+", "-"}:
                found = f"parameter '{name}' has the default {self.default}"
                raise SpecError(found, required="one number, or one each for '+' and '-'")
            if not per_channel:
                found = f"parameter '{name}' has a default per channel: {self.default}"
                raise SpecError(found, required="one number", remedy="declare it with per_channel=True")
        for channel, value in self.default_items():
            self.check(value, f"the default{channel and f' of channel {channel!r}'}")

    def default_items(self) -> list[tuple[str, float]]:
        if self.default is None:
            return []
        return list(self.default.items()) if isinstance(self.default, dict) else [("", self.default)]

    @property
    def range(self) -> str:
        low = "-inf" if self.lower is None else f"{self.lower:g}"
        high = "inf" if self.upper is None else f"{self.upper:g}"
        return f"({low}, {high})"

    def check(self, value: float, what: str) -> float:
        """`value` as a float, or a ParameterError naming `what`."""
        try:
            number = float("no number" if isinstance(value, (bool, str)) else value)
        except (TypeError, ValueError, OverflowError):
            found = f"parameter '{self.name}': {what} is {shown(value)}"
            raise ParameterError(found, required="a number that a float64 holds") from None
        above = self.lower is None or number > self.lower
        below = self.upper is None or number < self.upper
        if not (math.isfinite(number) and above and below):
            raise ParameterError(
                f"parameter '{self.name}': {what} is {number:g}",
                required=f"a finite number strictly inside {self.range}",
                remedy="the bounds are assumptions of the proofs: pass a value inside them, or declare others",
            )
        return number

    def declaration(self) -> str:
        """The call that declares this parameter."""
        usual = {
            name: field.default for name, field in type(self).model_fields.items() if name not in ("name", "default")
        }
        extra = "".join(f", {k}={v!r}" for k, u in usual.items() if (v := getattr(self, k)) != u)
        return f"Parameter({self.name!r}, default={self.default!r}{extra})"


@dataclass(frozen=True, repr=False)
class Component(Expression):
    """One channel of a per-channel parameter; written by the compiler, never by a user."""

    parameter: Parameter
    channel: str

    def text(self) -> str:
        return f"{self.parameter.name}[{self.channel}]"


@dataclass(frozen=True, repr=False)
class Reading(Expression):
    """What a gate reads at its element: the residual density, the advantage, the mass, the sign of its channel, what
    pulls it; or the log ratio of a token."""

    name: str

    def text(self) -> str:
        return self.name


residual = Reading("residual")
advantage = Reading("advantage")
token_log_ratio = Reading("token_log_ratio")
# `m` at the element, the leaf measure that the kernels spread: `K(a|b) = m(a)/m(b)`. A density is a mean times this.
mass = Reading("mass")
# 1, and -1 on the channel "-": in a decomposition split by sign, which way the channel moves the ratio.
channel_sign = Reading("channel_sign")
# What pulls the density of the element up, detached; only its sign has a meaning (`Hierarchy.pull`).
pull = Reading("pull")


@dataclass(frozen=True, repr=False)
class LogProb(Expression):
    """The log-probability of a sampled token under a policy, in nats; never above 0. Written `log_prob(policy)`."""

    policy: Policy

    def text(self) -> str:
        return f"log_prob({self.policy!r})"


def log_prob(policy: Policy) -> LogProb:
    """log π of the token under a policy: `exp(log_prob(old) - log_prob(rollout))` is a ratio of two of them."""
    if not isinstance(policy, Policy):
        remedy = "declare it: current, old, rollout = policies('current old rollout')"
        raise SpecError(f"log_prob takes a policy, not {policy!r}", remedy=remedy)
    return LogProb(policy)


@dataclass(frozen=True, repr=False, eq=False)
class Aggregate(Expression):
    """A statistic of a formula over all tokens that lie over an element; no gradient flows through it.

    `formula` is read at the tokens, the statistic at the elements of `over` (None: at the current one). `level` is the
    fraction of a quantile.
    """

    kind: str  # total, mean, largest, some, quantile
    formula: Expression
    over: Where = None
    level: Expression | None = None
    depth: int = field(init=False)
    size: int = field(init=False)
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", 1 + self.formula.depth)
        object.__setattr__(self, "size", 1 + self.formula.size)
        object.__setattr__(self, "_hash", hash((self.kind, self.formula, self.over, self.level)))

    @property
    def is_condition(self) -> bool:  # type: ignore[override]
        return self.kind == "some"

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        mine = (self.kind, self.formula, self.over, self.level)
        return self is other or (
            isinstance(other, Aggregate)
            and self._hash == other._hash
            and mine == (other.kind, other.formula, other.over, other.level)
        )

    def text(self) -> str:
        level = "" if self.level is None else f", {self.level}"
        return f"{self.kind}({self.formula}{level}{_over(self.over)})"


def _aggregate(kind: str, formula: object, over: object, level: object = None) -> Aggregate:
    value = as_expression(formula, f"the formula of {kind}")
    if value.is_condition is not (kind == "some"):
        wanted = "a condition" if kind == "some" else "a number"
        remedy = "" if kind == "some" else "write where(condition, 1, 0)"
        raise SpecError(f"{kind} takes {wanted}, not {value}", required=wanted, remedy=remedy)
    place = None if over is None else _of(over, f"{kind}(..., over=)")
    return Aggregate(kind, value, place, None if level is None else as_expression(level, f"the level of {kind}"))


def mean(formula: Operand, over: Where = None) -> Aggregate:
    """The mean of a formula over the tokens that lie over the `over` element at or below the current one, detached."""
    return _aggregate("mean", formula, over)


def largest(formula: Operand, over: Where = None) -> Aggregate:
    """The largest value of a formula on those tokens, detached; the least is `-largest(-formula)`."""
    return _aggregate("largest", formula, over)


def some(condition: Expression, over: Where = None) -> Aggregate:
    """Whether a condition holds on some of those tokens; on all of them is `~some(~condition)`."""
    return _aggregate("some", condition, over)


def quantile(formula: Operand, level: Operand, over: Where = None) -> Aggregate:
    """The quantile of a formula on those tokens, detached: between the two values next to `level·(n - 1)`, linearly.

    As `numpy.quantile` and `torch.quantile` do by default, so that equal values need no order. `level` is a number
    from 0 to 1, or a Parameter whose bounds lie in there.
    """
    made = _aggregate("quantile", formula, over, level)
    given = made.level
    inside = isinstance(given, Number) and 0 <= given.value <= 1
    if isinstance(given, Parameter):
        inside = given.lower is not None and given.upper is not None and 0 <= given.lower < given.upper <= 1
    if not inside:
        raise SpecError(
            f"the level of a quantile is {given}",
            required="a number from 0 to 1, or a Parameter with lower=0 and upper=1, or bounds between them",
        )
    return made


@dataclass(frozen=True, repr=False)
class Density(Expression):
    """The density of a coarser stratum below the element (`p_{<k}`, def:fgh); `channel=None` is the gate's own."""

    stratum: Stratum
    channel: str | None = None

    def text(self) -> str:
        own = "" if self.channel is None else f', "{self.channel}"'
        return f"density({self.stratum!r}{own})"


def density(stratum: Stratum, channel: str | None = None) -> Density:
    """Density at the `stratum` element that the current element lies over."""
    if not isinstance(stratum, Stratum):
        raise SpecError(f"density takes a stratum, not {stratum!r}")
    return Density(stratum, None if channel is None else _channel(channel, "density"))


@dataclass(frozen=True, repr=False)
class Gated(Expression):
    """The gated density of one channel on the leaf stratum, as a recovery reads it."""

    channel: str

    def text(self) -> str:
        return f'gated("{self.channel}")'


def gated(channel: str) -> Gated:
    """What the recovery map gets back on `channel`."""
    return Gated(_channel(channel, "gated"))


def _channel(channel: object, what: str) -> str:
    if isinstance(channel, str) and channel in ("", "+", "-"):
        return channel
    rule = "'+' or '-', or '' where there is one channel"
    raise SpecError(f"{what} cannot read the channel {channel!r}", required=rule)


def read_at(atom: Expression) -> Where:
    """The stratum that an atom names as the one at whose elements it has its values.

    None for what is read at the element where it stands, and for a parameter that names none.
    """
    if isinstance(atom, (Count, Total, Aggregate)):
        return atom.over
    if isinstance(atom, (Attribute, Parameter)):
        return atom.on
    return atom.parameter.on if isinstance(atom, Component) else None


def within(expression: Expression) -> Iterator[Expression]:
    """The expression, and the formulas of the aggregates that it reads, however deep: those are read at tokens."""
    yield expression
    for atom in atoms(expression):
        if isinstance(atom, Aggregate):
            yield from within(atom.formula)
            if atom.level is not None:
                yield atom.level


def at(expression: Expression, place: Where) -> Expression:
    """Read the counts and totals that name no `over` at `place`."""

    def resolve(atom: Expression) -> Expression:
        if isinstance(atom, Count) and atom.over is None:
            return Count(atom.of, place)
        if isinstance(atom, Total) and atom.over is None:
            return Total(atom.attribute, place)
        if isinstance(atom, Aggregate) and atom.over is None:
            return replace(atom, over=place)
        return atom

    return transform(expression, resolve)


def put(expression: Expression, places: Callable[[Place], Stratum]) -> Expression:
    """Replace the places `source` and `target` by strata."""

    def stratum(place: Any) -> Any:
        return places(place) if isinstance(place, Place) else place

    def resolve(atom: Expression) -> Expression:
        if isinstance(atom, Count):
            return Count(stratum(atom.of), stratum(atom.over))
        return Total(atom.attribute, stratum(atom.over)) if isinstance(atom, Total) else atom

    return transform(expression, resolve)


def in_channel(expression: Expression, channel: str) -> Expression:
    """The expression as read on one sign channel: its sign, its parameters and its own densities resolved."""

    def resolve(atom: Expression) -> Expression:
        if atom == channel_sign:
            return as_expression(-1 if channel == "-" else 1)
        if isinstance(atom, Parameter) and atom.per_channel:
            return Component(atom, channel)
        if isinstance(atom, Density) and atom.channel is None:
            return Density(atom.stratum, channel)
        return atom

    return transform(expression, resolve)
