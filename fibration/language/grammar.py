"""The written form of expressions and of constructor calls: one small grammar, and its reader.

    text      := where | or | comparison | sum | product | power | call
    call      := name "(" arguments ")" ("." name "(" arguments ")")*
    arguments := positional and name=value, separated by commas; a value may also be a quoted word, as a channel is

It looks like Python, but nothing is evaluated. A name means what the caller's table maps it to. Length and nesting are
limited before anything is built. `expressions.write` writes the same grammar.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar, TypeVar

from fibration.errors import SpecError, an, shown, suggest
from fibration.language.advantages import centred, standardised
from fibration.language.atoms import (
    Place,
    Stratum,
    advantage,
    channel_sign,
    count,
    density,
    gated,
    mass,
    pull,
    residual,
    reward,
    token_log_ratio,
)
from fibration.language.expressions import MAX_DEPTH, Expression, apply, as_expression
from fibration.language.operators import CALLED, OPERATORS
from fibration.language.order import after, before, position
from fibration.language.policies import CURRENT, OLD, Policy, log_prob
from fibration.language.statistics import deviation, largest, mean, quantile, some, total

T = TypeVar("T")
MAX_TEXT = 10_000
MAX_REASON = 1_000  # of a law that is given up
MAX_DIGITS = 1_000

TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?)|(?P<name>[A-Za-z_]\w*)"
    r"|\"(?P<string>[^\"\n]{0,64})\"|(?P<sign>\*\*|<=|>=|[-+*/()<>,=.&|~\[\]{}:]))",
    re.ASCII,
)


@dataclass(frozen=True)
class Word:
    """A name as it was read."""

    text: str


@dataclass(frozen=True)
class Quoted:
    """A quoted string as it was read."""

    text: str


@dataclass(frozen=True)
class Invocation:
    """`name(arguments)`, with the methods called on it, as it was read."""

    name: str
    positional: tuple[Tree, ...]
    named: tuple[tuple[str, Tree], ...]
    methods: tuple[Invocation, ...] = ()
    depth: int = field(init=False)

    def __post_init__(self) -> None:
        parts = (*self.positional, *(t for _, t in self.named), *self.methods)
        object.__setattr__(self, "depth", _depth(parts))


@dataclass(frozen=True)
class Operation:
    """An infix or prefix operator and its operands, as they were read."""

    operator: str
    operands: tuple[Tree, ...]
    depth: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", _depth(self.operands))


Tree = Fraction | Word | Quoted | Invocation | Operation


def _depth(parts: tuple[Tree, ...]) -> int:
    """Returns how deep calls and operations are nested, which is the depth of recursion over the tree."""
    return 1 + max((p.depth for p in parts if isinstance(p, (Invocation, Operation))), default=0)


class _Reader:
    def __init__(self, text: object, what: str) -> None:
        if not isinstance(text, str):
            found = f"{what} is {an(type(text).__name__)}: {shown(text)}"
            raise SpecError(found, required="text in the expression grammar")
        if len(text) > MAX_TEXT:
            raise SpecError(f"{what} has {len(text)} characters", required=f"at most {MAX_TEXT}")
        self.text, self.what, self.depth = text, what, 0
        self.tokens: list[tuple[str, str, int]] = []
        position = 0
        while position < len(text.rstrip()):
            match = TOKEN.match(text, position)
            if match is None:
                at = position + len(text[position:]) - len(text[position:].lstrip())
                raise self.error(f"the character {text[at]!r}", at)
            kind = match.lastgroup or ""
            self.tokens.append((kind, match.group(kind), match.start(kind)))
            position = match.end()
        self.position = 0

    def error(self, found: str, at: int | None = None) -> SpecError:
        if at is None:
            at = self.tokens[self.position][2] if self.position < len(self.tokens) else len(self.text)
        return SpecError(
            f"{self.what} cannot be read: {self.text if len(self.text) <= 80 else f'{self.text[:77]}...'!r}",
            required="the expression grammar: numbers, names, + - * / **, comparisons, calls of known functions",
            found=f"{found} at character {at + 1}",
            remedy="nothing in a spec is ever executed; write the formula itself",
        )

    def peek(self) -> str:
        if self.position >= len(self.tokens):
            return ""
        kind, text, _ = self.tokens[self.position]
        return text if kind in ("sign", "name") else kind

    def take(self) -> tuple[str, str]:
        if self.position >= len(self.tokens):
            raise self.error("the end")
        kind, text, _ = self.tokens[self.position]
        self.position += 1
        return kind, text

    def expect(self, sign: str) -> None:
        if self.peek() != sign:
            raise self.error(f"{self.peek() or 'the end'} where '{sign}' is needed")
        self.position += 1

    def whole(self) -> Tree:
        tree = self.expression()
        if self.position < len(self.tokens):
            raise self.error(f"'{self.tokens[self.position][1]}' after the end of the expression")
        return tree

    # Comparisons bind tighter than & and |, as in mathematics; `write` puts parentheses, because Python disagrees.
    INFIX: ClassVar = {r.sign: name for name, r in OPERATORS.items() if r.sign and r.arity == 2 and name != "**"}
    PREFIX: ClassVar = {r.sign: name for name, r in OPERATORS.items() if r.sign and r.arity == 1}
    STRENGTH: ClassVar = {sign: OPERATORS[name].binding for sign, name in INFIX.items()}
    COMPARISON = OPERATORS["<"].binding  # does not chain

    def expression(self, level: int = 0) -> Tree:
        """Reads operands joined by operators that bind at least as tightly as `level`."""
        left, loosest = self.prefix(), OPERATORS["**"].binding
        while level <= (strength := self.STRENGTH.get(sign := self.peek(), -1)) < loosest:
            self.position += 1
            left = self.operation(self.INFIX[sign], left, self.expression(strength + 1))
            if strength == self.COMPARISON:
                loosest = strength
        return left

    def operation(self, operator: str, *operands: Tree) -> Operation:
        return self.bounded(Operation(operator, operands))

    def bounded(self, tree: T) -> T:
        if isinstance(tree, (Invocation, Operation)) and tree.depth > MAX_DEPTH:
            raise self.error(f"more than {MAX_DEPTH} operations in one another")
        return tree

    def prefix(self) -> Tree:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"more than {MAX_DEPTH} levels of nesting")
        sign = self.peek()
        if sign in self.PREFIX:
            self.position += 1
            operand = self.prefix()
            if sign == "-" and isinstance(operand, Fraction):
                tree: Tree = -operand
            else:
                tree = self.operation(self.PREFIX[sign], operand)
        else:
            tree = self.primary()
            if self.peek() == "**":
                self.position += 1
                tree = self.operation("**", tree, self.primary())
        self.depth -= 1
        return tree

    def primary(self) -> Tree:
        kind, text = self.take()
        if kind == "number":
            if len(text) > MAX_DIGITS:
                self.position -= 1
                raise self.error(f"a number of {len(text)} characters")
            return Fraction(text)
        if kind == "string":
            return Quoted(text)
        if kind == "name":
            if self.peek() != "(":
                return Word(text)
            call = self.call(text)
            methods = []
            while self.peek() == ".":
                self.position += 1
                kind, method = self.take()
                if kind != "name":
                    raise self.error(f"'{method}' where a method's name is needed")
                methods.append(self.call(method))
            return self.bounded(Invocation(call.name, call.positional, call.named, tuple(methods)))
        if text == "(":
            inside = self.expression()
            self.expect(")")
            return inside
        self.position -= 1
        raise self.error(f"'{text}'")

    def call(self, name: str) -> Invocation:
        self.expect("(")
        positional: list[Tree] = []
        named: list[tuple[str, Tree]] = []
        while self.peek() != ")":
            ahead = self.tokens[self.position : self.position + 2]
            if len(ahead) == 2 and ahead[0][0] == "name" and ahead[1][1] == "=":
                key = self.take()[1]
                self.position += 1
                named.append((key, self.expression()))
            elif named:
                raise self.error("a positional argument after a named one")
            else:
                positional.append(self.expression())
            if self.peek() != ")":
                self.expect(",")
        self.expect(")")
        return self.bounded(Invocation(name, tuple(positional), tuple(named)))


def read(text: object, what: str = "an expression") -> Tree:
    """Parses text into a tree. It builds nothing and looks up no names."""
    return _Reader(text, what).whole()


Names = Mapping[str, object]
_READINGS = {r.name: r for r in (residual, advantage, token_log_ratio, mass, channel_sign, pull, reward)}
_POLICIES = {name: Policy(name) for name in (CURRENT, OLD)}
_ATOM_CALLS: dict[str, Callable[..., Expression]] = {
    f.__name__: f
    for f in (
        count, total, density, gated, log_prob, mean, deviation, largest, some, quantile, before, after, position,
        centred, standardised,
    )
}  # fmt: skip
_TRUTHS = {"True": True, "False": False}
PLACES = ("over", "of", "on")  # arguments that name a stratum
CALLS = (*CALLED, *_ATOM_CALLS)


_RATIOS = ("ratio", "ratios", "r", "rho", "importance_ratio")  # what users write for `exp(token_log_ratio)`


def build(tree: Tree, names: Names, what: str = "an expression") -> Expression:
    """Turns a tree into an Expression. `names` maps words to strata, policies, parameters and attributes."""
    if isinstance(tree, Fraction):
        return as_expression(tree, what)
    if isinstance(tree, Word):
        found = _READINGS[tree.text] if tree.text in _READINGS else names.get(tree.text)
        if isinstance(found, Expression):
            return found
        known = sorted([*_READINGS, *(n for n, v in names.items() if isinstance(v, Expression))])
        kind = "is a stratum, not a number" if isinstance(found, (Stratum, Place)) else "means nothing here"
        remedy = "the importance ratio is exp(token_log_ratio)" if tree.text in _RATIOS else suggest(tree.text, known)
        raise SpecError(f"{what}: the name '{tree.text}' {kind}", required=f"one of {', '.join(known)}", remedy=remedy)
    if isinstance(tree, Quoted):
        found = f"{what}: the text {tree.text!r} stands where a number belongs"
        raise SpecError(found, required="a number or a formula", remedy="leave the quotation marks out")
    if isinstance(tree, Operation):
        if tree.operator == "**":
            exponent = tree.operands[1]
            if not isinstance(exponent, Fraction) or exponent.denominator != 1 or abs(exponent) > 1000:
                raise SpecError(
                    f"{what}: a power of another exponent",
                    required="a whole number from 1 to 16",
                    remedy="sqrt(x), exp(y*log(x)) or 1/x",
                )
            return build(tree.operands[0], names, what) ** int(exponent)
        return apply(tree.operator, *(build(o, names, what) for o in tree.operands))
    if tree.methods:
        method = tree.methods[0].name
        raise SpecError(
            f"{what}: '.{method}(...)' belongs to a gate, not to a number",
            required="a formula",
            remedy=f"leave .{method}(...) out",
        )
    if tree.name in CALLED and not tree.named:
        return apply(tree.name, *(build(a, names, what) for a in tree.positional))
    if tree.name in _ATOM_CALLS:
        positional, named = arguments(tree, names, what)
        form = inspect.signature(_ATOM_CALLS[tree.name])
        try:
            form.bind(*positional, **named)
        except TypeError:
            required = f"{tree.name}({', '.join(form.parameters)})"
            raise SpecError(f"{what}: wrong arguments to '{tree.name}'", required=required) from None
        return _ATOM_CALLS[tree.name](*positional, **named)
    raise SpecError(
        f"{what}: unknown operator '{tree.name}'",
        required=f"one of {', '.join(CALLS)}",
        remedy=suggest(tree.name, CALLS),
    )


def arguments(call: Invocation, names: Names, what: str) -> tuple[list[object], dict[str, object]]:
    """Returns the arguments of a call: strata, places, policies, quoted text, True and False as they are.

    Every other argument is an Expression.
    """

    def value(tree: Tree, key: str = "") -> object:
        if isinstance(tree, Quoted):
            return tree.text
        found = {**_POLICIES, **_TRUTHS, **names}.get(tree.text) if isinstance(tree, Word) else None
        if isinstance(found, (Stratum, Place, Policy, bool)):
            return found
        if isinstance(tree, Word) and call.name == log_prob.__name__:
            known = [*_POLICIES, *(n for n, v in names.items() if isinstance(v, Policy))]
            remedy = f'name it where policies are declared: "policies": ["{tree.text}"]'
            raise SpecError(f"{what}: no policy '{tree.text}'", required=f"one of {', '.join(known)}", remedy=remedy)
        if isinstance(tree, Word) and key in PLACES and tree.text not in names:
            known = [n for n, v in names.items() if isinstance(v, Stratum)]
            required = f"one of {', '.join(known)}"
            raise SpecError(f"{what}: no stratum '{tree.text}'", required=required, remedy=suggest(tree.text, known))
        return build(tree, names, what)

    keys = [k for k, _ in call.named]
    if len(set(keys)) != len(keys):
        twice = ", ".join(f"{k}=" for k in dict.fromkeys(keys) if keys.count(k) > 1)
        raise SpecError(
            f"{what}: an argument of '{call.name}' is given twice",
            required="each argument once",
            found=f"{twice} twice",
            remedy="leave one of them out",
        )
    return [value(t) for t in call.positional], {k: value(t, k) for k, t in call.named}


def parse(text: object, names: Names, what: str = "an expression") -> Expression:
    """Reads text and builds its Expression."""
    return as_expression(build(read(text, what), names, what))
