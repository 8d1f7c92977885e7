"""The expression language, in which gates, kernel weights, decompositions and all other formulas are written.

An `Expression` is an immutable tree of numbers, atoms (`atoms.py`) and operators (`operators.py`). It keeps what was
written: nothing is reordered or evaluated, because `C - k*(abs(s) - C)` and `(k + 1)*C - k*abs(s)` are different
programs in float32. The laws translate it to sympy (`sympy_bridge.py`), lowering translates it to the IR.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import import_module
from numbers import Integral, Real
from typing import Any

from fibration.errors import SpecError, an, shown

MAX_DEPTH = 100
MAX_SIZE = 4_000
SYMPY = "fibration.language.sympy_bridge"  # loads sympy, when the first of its expressions arrives
SMALLEST, LARGEST = Fraction(1, 10**300), Fraction(10**300)


def _operator(sign: str, is_reflected: bool = False) -> Callable[[Expression, Operand], Expression]:
    """Returns the method for an operator of Python; reflected, for one whose left operand is no formula."""
    if is_reflected:
        return lambda self, other: apply(sign, other, self)
    return lambda self, other: apply(sign, self, other)


class Expression:
    """A formula. It has arithmetic, comparisons, and `&`, `|`, `~` for conditions, and prints as it was written."""

    __slots__ = ()
    is_condition = False
    depth = 0
    size = 1

    __add__, __radd__ = _operator("+"), _operator("+", is_reflected=True)
    __sub__, __rsub__ = _operator("-"), _operator("-", is_reflected=True)
    __mul__, __rmul__ = _operator("*"), _operator("*", is_reflected=True)
    __truediv__, __rtruediv__ = _operator("/"), _operator("/", is_reflected=True)
    __and__, __or__ = _operator("and"), _operator("or")

    def __pow__(self, exponent: int) -> Expression:
        if not isinstance(exponent, int) or isinstance(exponent, bool) or not 1 <= exponent <= 16:
            raise SpecError(
                f"cannot raise {self} to the power {exponent!r}",
                required="a whole exponent from 1 to 16",
                remedy="use sqrt(x), exp(y*log(x)) or 1/x",
            )
        return apply("**", self, exponent)

    def __rpow__(self, base: Operand) -> Expression:
        raise SpecError(
            f"cannot raise {base!r} to the power {self}",
            required="a whole exponent from 1 to 16",
            remedy="use exp(y*log(x))",
        )

    def __neg__(self) -> Expression:
        return apply("neg", self)

    def __abs__(self) -> Expression:
        return apply("abs", self)

    def __lt__(self, other: Operand) -> Expression:
        return apply("<", self, other)

    def __le__(self, other: Operand) -> Expression:
        return apply("<=", self, other)

    def __gt__(self, other: Operand) -> Expression:
        return apply(">", self, other)

    def __ge__(self, other: Operand) -> Expression:
        return apply(">=", self, other)

    def __invert__(self) -> Expression:
        return apply("not", self)

    def __bool__(self) -> bool:
        raise SpecError(
            f"'{self}' has no truth value while a hierarchy is declared",
            required="sizes, residuals and parameters are known only when a batch is gated",
            remedy="write where(condition, value, otherwise), maximum and minimum; join conditions with & and |",
        )

    def spelled(self) -> Spelled | None:
        """Returns the call that makes an atom; None for an atom that is written as its name."""
        return None

    def text(self) -> str:
        """Returns the text of an atom. `write` writes numbers and applications."""
        spelled = self.spelled()
        if spelled is None:
            raise NotImplementedError
        function, positional, named = spelled
        words = [f'"{v}"' if isinstance(v, str) else str(v) for v in positional]
        return f"{function}({', '.join([*words, *(f'{key}={value}' for key, value in named)])})"

    def __str__(self) -> str:
        return write(self)

    def __repr__(self) -> str:
        return str(self)

    def _foreign(self, *args: object, **kwargs: object) -> Any:
        raise _no_array(self, "", args)

    __float__ = __int__ = __array__ = _foreign

    def __array_ufunc__(self, function: Any, method: str, *args: object, **kwargs: object) -> Any:
        """Builds the expression for an operator with a numpy number on its left."""
        sign = _SIGNS.get(function.__name__)
        if sign and method == "__call__":
            return apply(sign, *args)
        raise _no_array(self, function.__name__, args)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        formula = next(a for a in args if isinstance(a, Expression))
        raise _no_array(formula, getattr(function, "__name__", ""), args)

    def _sympy_(self) -> Any:
        return import_module(SYMPY).to_sympy(self)


_SIGNS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/",
    "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
}  # fmt: skip
_CALLED = {"fabs": "absolute", "abs": "absolute", "clamp": "clip", "max": "maximum", "min": "minimum"}


def _no_array(formula: Expression, function: str, args: tuple[object, ...]) -> SpecError:
    word = _CALLED.get(function, function)
    words = "exp, log, tanh, sqrt, absolute, sign, minimum, maximum, clip, where"
    known = word in SYNTAX or word in words.split(", ")
    number = next((a for a in args if getattr(a, "ndim", None) == 0 and not isinstance(a, Expression)), None)
    return SpecError(
        f"'{formula}' is a formula, not a number or an array",
        required="functions of this library, which keep the formula",
        remedy=f"use fibration.{word if known else words}" if number is None else f"write float(...) of {number!r}",
    )


class ExpressionTooLarge(SpecError):
    """An expression is too deep for recursion or too large for a program."""


Spelled = tuple[str, tuple[object, ...], tuple[tuple[str, object], ...]]  # a function of the language, and arguments


def spell(function: str, *positional: object, **named: object) -> Spelled:
    """Returns a call in the language. Arguments that are None are left out."""
    given = tuple((key, value) for key, value in named.items() if value is not None)
    return function, tuple(value for value in positional if value is not None), given


Operand = Expression | int | float | Fraction


@dataclass(frozen=True, repr=False)
class Number(Expression):
    """An exact constant. A float counts as the decimal that it prints as, so `0.1` is one tenth."""

    value: Fraction  # with a finite decimal form


@dataclass(frozen=True, repr=False, eq=False)
class Nested(Expression):
    """An expression that contains others. Compared by structure, hashed once."""

    depth: int = field(init=False)
    size: int = field(init=False)
    _parts: tuple[Any, ...] = field(init=False)
    _hash: int = field(init=False)

    def _nest(self, depth: int, size: int, *parts: object) -> None:
        """Sets the size and the parts, in the order of the constructor. Raises `ExpressionTooLarge`."""
        object.__setattr__(self, "depth", depth)
        object.__setattr__(self, "size", size)
        if depth > MAX_DEPTH or size > MAX_SIZE:
            raise ExpressionTooLarge(
                f"an expression of depth {depth} and size {size} is too large",
                required=f"at most {MAX_DEPTH} levels and {MAX_SIZE} nodes",
                remedy="an atomic gate or kernel weight is a scalar formula; move data into an Attribute",
            )
        object.__setattr__(self, "_parts", parts)
        object.__setattr__(self, "_hash", hash(parts))

    def __reduce__(self) -> tuple[Any, ...]:  # hashes of text differ in every process
        return type(self), self._parts

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(other) is type(self)
            and self._hash == other._hash  # type: ignore[attr-defined]
            and self._parts == other._parts  # type: ignore[attr-defined]
        )


@dataclass(frozen=True, repr=False, eq=False)
class Apply(Nested):
    """An operator applied to arguments."""

    operator: str
    arguments: tuple[Expression, ...]

    def __post_init__(self) -> None:
        depth = 1 + max(a.depth for a in self.arguments)
        size = 1 + sum(a.size for a in self.arguments)
        if self.operator == "**" and isinstance(self.arguments[1], Number):  # counts as the product that it stands for
            size = 1 + self.arguments[0].size * int(self.arguments[1].value)
        self._nest(depth, size, self.operator, self.arguments)

    @property
    def is_condition(self) -> bool:  # type: ignore[override]
        return SYNTAX[self.operator].is_condition


@dataclass(frozen=True, kw_only=True)
class Syntax:
    """How an operator is applied and written. Its row in `operators.py` says what it means."""

    arity: int
    is_condition: bool = False  # whether its value is a condition and not a number
    conditions: frozenset[int] = frozenset()  # the positions of arguments that are conditions
    sign: str = ""  # between its operands, or before the only one; an operator without a sign is called by its name
    binding: int = 9  # how tightly the sign binds


SYNTAX: dict[str, Syntax] = {}  # of all operators; `operators.py` fills it


def as_expression(value: object, what: str = "an expression") -> Expression:
    """Returns the Expression for an Expression, a finite number, or a sympy expression of the language's atoms.

    Raises SpecError for anything else; the error names `what`.
    """
    if isinstance(value, Expression):
        return value
    if isinstance(value, bool):
        raise SpecError(
            f"{what} cannot be {value!r}",
            required="a number or an expression in the language's atoms",
            remedy="== and != compare what was written: write conditions with <, <=, > and >=",
        )
    package = type(value).__module__.partition(".")[0]
    if package == "sympy":
        return import_module(SYMPY).from_sympy(value)  # type: ignore[no-any-return]
    if package == "numpy" and getattr(value, "ndim", None) == 0:
        value = value[()]  # type: ignore[index]  # the number in an array without dimensions
    if isinstance(value, Integral):
        value = int(value)
    elif isinstance(value, Real) and not isinstance(value, (float, Fraction)):
        value = float(str(value))  # numpy's float32 and the like: the decimal that it prints as
    if isinstance(value, (int, Fraction)):
        number = Fraction(value)
        if number and not SMALLEST < abs(number) < LARGEST:
            raise SpecError(
                f"{what} holds a number that float64 does not", required="0, or a size from 1e-300 to 1e300"
            )
        if terminates(number):
            return Number(number)
        return Apply("/", (Number(Fraction(number.numerator)), Number(Fraction(number.denominator))))
    if isinstance(value, float):
        if not math.isfinite(value):
            raise SpecError(f"{what} cannot hold {value!r}", required="finite numbers")
        return as_expression(Fraction(repr(float(value))), what)
    raise SpecError(
        f"{what} cannot be {an(type(value).__name__)}: {shown(value)}",
        required="a number or an expression in the language's atoms",
        remedy=_instead(value),
    )


def as_number(value: object, what: str, remedy: str) -> Expression:
    """Returns `as_expression` of a value. Raises SpecError for a condition, which stands for `{}` in the remedy."""
    formula = as_expression(value, what)
    if formula.is_condition:
        found = f"{what} cannot be the condition {formula}"
        raise SpecError(found, required="a number", remedy=remedy.format(formula))
    return formula


def _instead(value: object) -> str:
    if isinstance(value, str):
        return "leave the quotes out; texts are for JSON"
    if hasattr(value, "ndim"):
        return "one number is float(...); numbers of elements are an Attribute's, given with the index"
    if type(value).__name__ == "Stratum":
        return f"how many there are is count({value})"
    if callable(value):
        return "call it: a formula is made of what it returns"
    return "use residual, count(...), Parameter(...), Attribute(...) and the functions of fibration, such as clip"


def terminates(value: Fraction) -> bool:
    """Returns whether a fraction has a finite decimal form, and can be written as one number."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def apply(operator: str, *arguments: object) -> Expression:
    """Returns an operator applied to arguments.

    Raises SpecError for a wrong number of arguments, and for a condition where a number is required.
    """
    row = SYNTAX[operator]
    args = tuple(as_expression(a, f"an argument of '{operator}'") for a in arguments)
    if len(args) != row.arity:
        what = f"'{operator}' takes {row.arity} arguments, got {len(args)}"
        raise SpecError(what, required=f"{row.arity} arguments", found=", ".join(map(str, args)))
    for position, argument in enumerate(args):
        wants_condition = position in row.conditions
        if argument.is_condition != wants_condition:
            raise SpecError(
                f"argument {position + 1} of '{operator}' is {argument}",
                required="a condition such as abs(residual) <= C" if wants_condition else "a number, not a condition",
            )
    if operator == "neg" and isinstance(args[0], Number):
        return Number(-args[0].value)
    return Apply(operator, args)


def write_number(value: Fraction) -> str:
    """Returns the text of a whole number or a decimal. The value of a `Number` terminates (see `as_expression`)."""
    if value.denominator == 1:
        return str(value.numerator)
    text = repr(float(value))
    if Fraction(text) == value:
        return text
    digits = 0
    while value.denominator != 1:
        value, digits = value * 10, digits + 1
    return f"{value.numerator}e-{digits}"


def write(expression: Expression) -> str:
    """Returns the text of an expression, with the fewest parentheses that keep its structure."""
    return _write(expression)[0]


def _write(e: Expression) -> tuple[str, int]:
    """Returns the text of an expression and the binding strength of its outermost operator."""
    if isinstance(e, Number):
        text = write_number(e.value)
        return text, 5 if e.value < 0 else 9
    if not isinstance(e, Apply):
        return e.text(), 9
    op = e.operator
    row = SYNTAX[op]
    if not row.sign:
        return f"{op}({', '.join(write(a) for a in e.arguments)})", row.binding

    def operand(argument: Expression, at_least: int) -> str:
        text, binding = _write(argument)
        return text if binding >= at_least else f"({text})"

    if row.arity == 1:
        return f"{row.sign}{operand(e.arguments[0], 7 if op == 'neg' else 9)}", row.binding
    left, right = e.arguments
    if row.conditions:  # & and | bind tighter than comparisons in Python, so comparisons take parentheses
        return f"{operand(left, 9)} {row.sign} {operand(right, 9)}", 4
    if row.is_condition:
        return f"{operand(left, 5)} {row.sign} {operand(right, 5)}", row.binding
    if op == "**":
        return f"{operand(left, 9)}**{operand(right, 9)}", row.binding
    gap = "" if op in "*/" else " "
    return f"{operand(left, row.binding)}{gap}{row.sign}{gap}{operand(right, row.binding + 1)}", row.binding
