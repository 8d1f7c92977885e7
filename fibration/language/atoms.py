"""The atoms of the language: strata, counts, attributes, parameters, and the values that a gate reads at its element.

Every atom is read *at an element*: an element of the gate's stratum, or the source element of a kernel. An atom of a
coarser stratum has the value at the one coarser element that the current element lies over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from numbers import Real
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from fibration.errors import ParameterError, SpecError, declare, shown
from fibration.language.declared import Declared, FrozenMap, Name, check_name, several
from fibration.language.expressions import Expression, Nested, Spelled, as_expression, spell
from fibration.language.traversal import KEPT, transform

BATCH = "batch"
INDEX_WORDS = frozenset({"mask", "offsets", "attributes", "positions", "device"})  # arguments of op.index, not strata


class Stratum(Declared):
    """One kind of element of a batch: tokens, trajectories, domains (`B_k`, def:uniform_fibration)."""

    name: Name

    def __init__(self, name: str) -> None:
        super().__init__(name=check_name(name, "a stratum"))  # type: ignore[call-arg]
        if name in INDEX_WORDS:
            raise SpecError(
                f"a stratum cannot be called {name!r}",
                required=f"a name that is no argument of op.index(...): not {', '.join(sorted(INDEX_WORDS))}",
                remedy=f"choose another name, such as '{name}_stratum'",
            )

    def __repr__(self) -> str:
        return self.name

    # Faster than pydantic's comparison and hash, with the same results: inner loops look things up by stratum.
    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is type(self) and other.name == self.name)  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self.name)


def strata(names: str) -> tuple[Stratum, ...]:
    """Returns one stratum per name: `token, trajectory = strata("token trajectory")`."""
    return tuple(Stratum(n) for n in several(names, "strata", "token trajectory"))


@dataclass(frozen=True)
class Place:
    """A placeholder for a stratum that is known later: the source or the target of a kernel's fibration, the rows."""

    name: str

    def __repr__(self) -> str:
        return self.name


SOURCE, TARGET = Place("source"), Place("target")
ROWS = Place("rows")  # the rows of the batch, until the hierarchy names their stratum
Where = Stratum | Place | None


def of_strata(of: object, what: str) -> Stratum | Place:
    if isinstance(of, (Stratum, Place)):
        return of
    raise SpecError(f"{what} takes a stratum, not {of!r}", remedy=declare("strata", of, "token"))


def of_stratum(on: object, what: str) -> Any:
    """Returns a stratum, or the mapping that JSON has for one, unchanged. SpecError for anything else."""
    if isinstance(on, (Stratum, Mapping)):
        return on
    raise SpecError(f"{what}: on={on!r}", required="a Stratum", remedy=declare("strata", on, "token"))


class Gathered(Expression):
    """An atom with one value per element of `over`, for all that lies over it. None: the current element."""

    __slots__ = ()
    over: Where


class Summary(Nested):
    """One number of a formula's values at several elements of `of`: a statistic, or a sum in order."""

    formula: Expression
    over: Where
    of: Where

    @property
    def word(self) -> str:
        """Returns the word of the language for it: a kind of statistic, or a direction."""
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class Count(Gathered):
    """The number of elements of `of` that lie over the current element of `over`. Written `count(of, over=...)`."""

    of: Stratum | Place
    over: Where = None

    def spelled(self) -> Spelled:
        return spell("count", self.of, over=self.over)


def count(of: Stratum | Place, over: Where = None) -> Count:
    """Returns the number of elements of `of` in one element of `over`, as a formula.

    That element of `over` is the current element, or the element that the current one belongs to. `over=None`: the
    current element. `count(token, over=trajectory)` is the length of the token's trajectory.
    """
    return Count(of_strata(of, "count"), None if over is None else of_strata(over, "count(..., over=)"))


class _Named(Declared, Expression):
    """A declaration that is an atom, written as its name."""

    name: Name

    def text(self) -> str:
        return self.name

    __repr__ = __str__ = text


class Attribute(_Named):
    """A number that the user gives for every element of a stratum, when the index is built.

    `op.index` checks every value against `positive=True` and `lower <= value <= upper`, which proofs assume. The bounds
    belong to the range: with `upper=1`, a probability may be exactly 1. `None` means unbounded.
    """

    on: Stratum
    positive: bool = True
    lower: float | None = None
    upper: float | None = None

    def __init__(
        self, name: str, on: Stratum, *, positive: bool = True, lower: float | None = None, upper: float | None = None
    ) -> None:
        check_name(name, "an attribute")
        super().__init__(  # type: ignore[call-arg]
            name=name, on=of_stratum(on, f"attribute '{name}'"), positive=positive, lower=lower, upper=upper
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
        """Exact bounds: a float counts as the decimal that it prints as. Without `lower`, positive values have 0."""
        return _ends(self.lower, self.upper, self.positive)

    def nearest(self, value: Fraction) -> Fraction:
        """Returns the number in the range nearest to `value`. If values are positive, `value` must be too."""
        low, high = self.ends
        value = value if low is None else max(value, low)
        return value if high is None else min(value, high)

    @property
    def usual(self) -> float:
        """A typical value: 1, or the number in the range that is nearest to 1."""
        return float(self.nearest(Fraction(1)))

    def is_outside(self, value: Any) -> Any:
        """Returns whether a number, or each number of an array, is outside the range."""
        outside = (value <= 0) if self.positive else (value != value)
        outside = outside if self.lower is None else outside | (value < self.lower)
        return outside if self.upper is None else outside | (value > self.upper)

    def declaration(self) -> str:
        """The call that declares this attribute."""
        bounds = "".join(f", {k}={v!r}" for k in ("lower", "upper") if (v := getattr(self, k)) is not None)
        return f"Attribute({self.name!r}, on={self.on}, positive={self.positive}{bounds})"


@dataclass(frozen=True, repr=False)
class Total(Gathered):
    """The sum of an attribute over the current element of `over`. Written `total(attribute, over=...)`."""

    attribute: Attribute
    over: Where = None

    @property
    def of(self) -> Stratum:
        """The stratum whose elements are summed, as `Count.of` is the stratum whose elements are counted."""
        return self.attribute.on

    def spelled(self) -> Spelled:
        return spell("total", self.attribute, over=self.over)


def _as_default(value: object) -> object:
    try:
        if isinstance(value, Mapping):
            return FrozenMap({str(k): _as_float(v) for k, v in value.items()})
        return None if value is None else _as_float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    pair = isinstance(value, (list, tuple)) and len(value) == 2
    raise SpecError(
        f"a parameter's default is a number, or one per channel, not {shown(value)}",
        remedy="Parameter(..., per_channel=True, default={'+': ..., '-': ...})" if pair else "",
    )


def _as_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError
    return (
        float(value) if isinstance(value, (int, float, Fraction)) else float(str(value))
    )  # numpy's float32 and the like: the decimal that it prints as


Default = Annotated[Any, BeforeValidator(_as_default), PlainSerializer(lambda v: dict(v) if isinstance(v, dict) else v)]


class Parameter(_Named):
    """A number that is chosen when the operator is called: a budget, a clip range, a temperature.

    - `default`: a number, or `{"+": number, "-": number}`. None: every call must pass a value.
    - `lower`, `upper`: strict bounds, `lower < value < upper`. None means unbounded. Proofs assume them, and every
      value is checked. A budget of exactly 0, for instance, would let nothing pass.
    - `per_channel=True`: each sign channel has a value of its own.
    - `on`: a coarser stratum whose elements may have different values. Default: the stratum of the gate that reads
      the parameter.

    A value outside the bounds raises ParameterError.
    """

    default: Default = None
    lower: float | None = 0.0
    upper: float | None = None
    per_channel: bool = False
    on: Stratum | None = None

    def __init__(
        self,
        name: str,
        default: float | Mapping[str, float] | None = None,
        *,
        lower: float | None = 0.0,
        upper: float | None = None,
        per_channel: bool = False,
        on: Stratum | None = None,
    ) -> None:
        check_name(name, "a parameter")
        super().__init__(  # type: ignore[call-arg]
            name=name,
            default=default,
            lower=lower,
            upper=upper,
            per_channel=per_channel,
            on=None if on is None else of_stratum(on, f"parameter '{name}'"),
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

    def is_outside(self, value: Any) -> Any:
        """Returns whether a number, or each number of an array, is outside the range or not finite."""
        low, high = (-math.inf if self.lower is None else self.lower), (math.inf if self.upper is None else self.upper)
        return (value <= low) | (value >= high) | (value != value)

    def check(self, value: float, what: str) -> float:
        """Returns `value` as a float. Raises a ParameterError that names `what`."""
        try:
            number = float("no number" if isinstance(value, (bool, str)) else value)
        except (TypeError, ValueError, OverflowError):
            found = f"parameter '{self.name}': {what} is {shown(value)}"
            raise ParameterError(found, required="a number that a float64 holds") from None
        if self.is_outside(number):
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
    """One channel of a per-channel parameter. The library writes it, never a user."""

    parameter: Parameter
    channel: str

    def text(self) -> str:
        return f"{self.parameter.name}[{self.channel}]"


@dataclass(frozen=True, repr=False)
class Reading(Expression):
    """A value that a formula reads at an element: residual, advantage, reward, mass, channel sign, pull, log ratio."""

    name: str

    def text(self) -> str:
        return self.name


#: The element's density minus its share of the density of the coarser element. Gates are formulas of it.
residual = Reading("residual")
#: The advantage of the token. In a gate: the one advantage that all tokens of the element have.
advantage = Reading("advantage")
#: `x = log r` of the token: its log-prob under the current policy minus its log-prob under the old one.
token_log_ratio = Reading("token_log_ratio")
#: The weight `m` of the element among all others: `K(a|b) = m(a)/m(b)`. A density divided by `m` is a mean.
mass = Reading("mass")
#: -1 on channel "-", else 1: whether a larger density on this channel lowers or raises the ratio.
channel_sign = Reading("channel_sign")
#: Above 0 where the objective raises the element's density. No gradient. Only its sign counts (`Hierarchy.pull`).
pull = Reading("pull")
#: The reward, in `Hierarchy(advantages=...)`. Calls then take `rewards=` instead of advantages.
reward = Reading("reward")


READINGS = {r.name: r for r in (residual, advantage, token_log_ratio, mass, channel_sign, pull, reward)}


@dataclass(frozen=True, repr=False)
class Density(Expression):
    """The density at the coarser element below (`p_{<k}`, def:fgh). `channel=None`: the channel of the gate."""

    stratum: Stratum
    channel: str | None = None

    def spelled(self) -> Spelled:
        return spell("density", self.stratum, self.channel)


def density(stratum: Stratum, channel: str | None = None) -> Density:
    """Returns the density of the `stratum` element that the current element belongs to, as a formula.

    `channel`: "+" or "-". Default: the channel of the gate.
    """
    if not isinstance(stratum, Stratum):
        what = f"density takes a stratum, not {stratum!r}"
        raise SpecError(what, required="a Stratum", remedy=declare("strata", stratum, "trajectory"))
    return Density(stratum, None if channel is None else _channel(channel, "density"))


@dataclass(frozen=True, repr=False)
class Gated(Expression):
    """The gated density of one channel on the leaf stratum, as a recovery reads it."""

    channel: str

    def spelled(self) -> Spelled:
        return spell("gated", self.channel)


def gated(channel: str = "") -> Gated:
    """Returns the gated density of a channel, as a formula for a recovery: "+", "-", or "" if there is one channel."""
    return Gated(_channel(channel, "gated"))


def _channel(channel: object, what: str) -> str:
    if isinstance(channel, str) and channel in ("", "+", "-"):
        return channel
    rule = "'+' or '-', or '' where there is one channel"
    raise SpecError(f"{what} cannot read the channel {channel!r}", required=rule)


def read_at(atom: Expression) -> Where:
    """Returns the stratum at whose elements an atom has its values.

    None for an atom that is read at the current element, and for a parameter without `on`.
    """
    if isinstance(atom, Gathered):
        return atom.over
    if isinstance(atom, (Attribute, Parameter)):
        return atom.on
    return atom.parameter.on if isinstance(atom, Component) else None


def of_one_value(atom: Expression) -> Expression:
    """Returns a parameter, or one channel of it, without `on`; any other atom unchanged."""
    if isinstance(atom, Component):
        return Component(of_one_value(atom.parameter), atom.channel)  # type: ignore[arg-type]
    return atom.model_copy(update={"on": None}) if isinstance(atom, Parameter) else atom


def at(expression: Expression, place: Where) -> Expression:
    """Sets `over=place` in counts, totals and statistics that name no `over`."""

    def resolve(atom: Expression) -> Expression:
        return replace(atom, over=place) if isinstance(atom, Gathered) and atom.over is None else atom  # type: ignore[type-var]

    return transform(expression, resolve)


def resolve_places(expression: Expression, places: Callable[[Place], Stratum]) -> Expression:
    """Replaces the places in counts and totals, such as `source` and `target`, by strata."""

    def stratum(place: Any) -> Any:
        return places(place) if isinstance(place, Place) else place

    def resolve(atom: Expression) -> Expression:
        if isinstance(atom, Count):
            return Count(stratum(atom.of), stratum(atom.over))
        return Total(atom.attribute, stratum(atom.over)) if isinstance(atom, Total) else atom

    return transform(expression, resolve)


@lru_cache(KEPT)
def in_channel(expression: Expression, channel: str) -> Expression:
    """Returns the expression as read on one sign channel: with its sign, its parameters and its densities."""

    def resolve(atom: Expression) -> Expression:
        if atom == channel_sign:
            return as_expression(-1 if channel == "-" else 1)
        if isinstance(atom, Parameter) and atom.per_channel:
            return Component(atom, channel)
        if isinstance(atom, Density) and atom.channel is None:
            return Density(atom.stratum, channel)
        return atom

    return transform(expression, resolve)


@lru_cache(maxsize=1024)
def _ends(lower: float | None, upper: float | None, positive: bool) -> tuple[Fraction | None, Fraction | None]:
    """Returns the exact bounds of an attribute; cached, because searches read them for every value that they try."""
    low, high = (None if b is None else Fraction(str(b)) for b in (lower, upper))
    return Fraction(0) if low is None and positive else low, high
