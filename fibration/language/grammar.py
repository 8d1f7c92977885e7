"""The written form of expressions and of constructor calls: a part of Python's grammar, read by Python's parser.

Text holds numbers, words, quoted text, operators, and calls with positional and named arguments and methods. `&` and
`|` bind less tightly than comparisons, as in mathematics; Python reads them as `and` and `or`, which bind like that.

Nothing is executed: Python's parser gets stand-ins for all numbers, words and quoted text, and `read` knows every node
that it takes from the result. A name means what the caller's table maps it to. `expressions.write` writes this grammar.

Constructors are the functions that declare gates, kernels, decompositions and objectives. Decorating one records how
its result was written, lets JSON and the command line name it, and adds it, with its examples, to the tests of laws,
derivatives and backends.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import Any, ClassVar, TypeVar

from fibration.errors import SpecError, an, located, shown, suggest
from fibration.language.atoms import READINGS, Place, Stratum, count, density, gated
from fibration.language.declared import CURRENT, OLD, Declared, Policy, log_prob
from fibration.language.expressions import MAX_DEPTH, Expression, Number, apply, as_expression, write
from fibration.language.operators import CALLED
from fibration.language.statistics import (
    after,
    before,
    centred,
    deviation,
    largest,
    mean,
    position,
    quantile,
    some,
    standardised,
    total,
)

T = TypeVar("T")
MAX_TEXT = 10_000
MAX_REASON = 1_000  # of a law that is given up
MAX_DIGITS = 1_000
TOO_DEEP = f"more than {MAX_DEPTH} operations in one another"

TOKEN = re.compile(
    r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<string>\"[^\"\n]{0,64}\")|(?P<sign>\*\*|<=|>=|[-+*/()<>,=.&|~])|(?P<other>\S)",
    re.ASCII,
)
STAND_INS = {"number": "0", "string": "0", "name": "n", "other": "?", "end": "\n", "&": "and", "|": "or"}
NODES: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.USub: "neg", ast.Invert: "not",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.And: "and", ast.Or: "or",
}  # fmt: skip


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


@dataclass(frozen=True)
class Operation:
    """An infix or prefix operator and its operands, as they were read."""

    operator: str
    operands: tuple[Tree, ...]


Tree = Fraction | Word | Quoted | Invocation | Operation


def read(text: object, what: str = "an expression") -> Tree:
    """Parses text into a tree. It builds nothing and looks up no names."""
    if not isinstance(text, str):
        found = f"{what} is {an(type(text).__name__)}: {shown(text)}"
        raise SpecError(found, required="text in the expression grammar")
    if len(text) > MAX_TEXT:
        raise SpecError(f"{what} has {len(text)} characters", required=f"at most {MAX_TEXT}")
    matches = [(m.lastgroup or "", m[0], m.start()) for m in TOKEN.finditer(text.rstrip())]
    tokens = [*matches, ("end", "", len(text))]

    def error(first: int, last: int | None, reason: str) -> SpecError:
        """Returns the error for the tokens from `first` to `last`, counted from 1."""
        (_, _, start), (_, token, at) = tokens[first - 1], tokens[(last or first) - 1]
        part = _short(text[start : at + len(token)], 40) if token else "the end"
        return SpecError(
            f"{what} cannot be read: {_short(text, 80)}",
            required="the expression grammar: numbers, names, + - * / **, comparisons, calls of known functions",
            found=f"{part} at character {start + 1}: {reason}",
            remedy="nothing in a spec is ever executed; write the formula itself",
        )

    def tree(node: ast.expr, depth: int) -> Tree:
        kind, token, _ = tokens[node.lineno - 1]
        if depth > MAX_DEPTH:
            raise error(node.lineno, None, TOO_DEEP)
        match node:
            case ast.Constant():
                if len(token) > MAX_DIGITS:
                    raise error(node.lineno, None, f"a number of {len(token)} characters")
                return Fraction(token) if kind == "number" else Quoted(token[1:-1])
            case ast.Name():
                return Word(token)
            case ast.UnaryOp(ast.USub() | ast.Invert() as operator, operand):
                operands = [operand]
            case ast.BinOp(left, operator, right) | ast.Compare(left, [operator], [right]):
                operands = [left, right]
            case ast.BoolOp(operator, operands):
                pass
            case ast.Call(ast.Name() | ast.Attribute(ast.Call()) as function, positional, named) if (
                kind == "name" and all(k.arg for k in named)
            ):
                given = tuple(tree(a, depth + 1) for a in positional)
                pairs = tuple((tokens[k.lineno - 1][1], tree(k.value, depth + 1)) for k in named)
                call = Invocation(tokens[(function.end_lineno or 0) - 1][1], given, pairs)
                base = None if isinstance(function, ast.Name) else tree(function.value, depth + 1)
                return replace(base, methods=(*base.methods, call)) if isinstance(base, Invocation) else call
            case _:
                raise error(node.lineno, node.end_lineno, "no part of this grammar")
        name = NODES[type(operator)]
        first, *others = (tree(o, depth + max(1, len(operands) - 1)) for o in operands)
        if not others:
            return -first if name == "neg" and isinstance(first, Fraction) else Operation(name, (first,))
        return reduce(lambda a, b: Operation(name, (a, b)), others, first)

    try:  # each token has a line, so that the line of a node or of an error tells the token
        signs = (STAND_INS.get(token if kind == "sign" else kind, token) for kind, token, _ in tokens)
        parsed = ast.parse("\\\n".join(signs), mode="eval")
    except SyntaxError as e:
        reason = re.sub(r"[.,] (perhaps|maybe) you meant.*", "", e.msg, flags=re.IGNORECASE)  # Python's own operators
        raise error(e.lineno or 1, e.end_lineno, reason) from None
    except (RecursionError, MemoryError):
        raise error(1, None, TOO_DEEP) from None
    return tree(parsed.body, 0)


def _short(text: str, most: int) -> str:
    return repr(text if len(text) <= most else f"{text[: most - 3]}...")


Names = Mapping[str, object]
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
        found = READINGS[tree.text] if tree.text in READINGS else names.get(tree.text)
        if isinstance(found, Expression):
            return found
        known = sorted([*READINGS, *(n for n, v in names.items() if isinstance(v, Expression))])
        kind = "is a stratum, not a number" if isinstance(found, (Stratum, Place)) else "means nothing here"
        remedy = "the importance ratio is exp(token_log_ratio)" if tree.text in _RATIOS else suggest(tree.text, known)
        raise _unknown(f"{what}: the name '{tree.text}' {kind}", known, remedy)
    if isinstance(tree, Quoted):
        found = f"{what}: the text {tree.text!r} stands where a number belongs"
        raise SpecError(found, required="a number or a formula", remedy="leave the quotation marks out")
    if isinstance(tree, Operation):
        operands = [build(o, names, what) for o in tree.operands]
        if tree.operator != "**":
            return apply(tree.operator, *operands)
        base, power = operands
        whole = isinstance(power, Number) and power.value.denominator == 1
        return base ** (int(power.value) if whole else power)  # type: ignore[attr-defined, operator]
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
        return called(_ATOM_CALLS[tree.name], tree, names, what)
    raise _unknown(f"{what}: unknown operator '{tree.name}'", CALLS, suggest(tree.name, CALLS))


def _unknown(found: str, known: Iterable[str], remedy: str) -> SpecError:
    return SpecError(found, required=f"one of {', '.join(known)}", remedy=remedy)


def arguments(call: Invocation, names: Names, what: str) -> tuple[list[object], dict[str, object]]:
    """Returns the arguments of a call: strata, places, policies, quoted text, True and False as they are.

    Every other argument is an Expression.
    """

    def value(tree: Tree, key: str = "") -> object:
        if isinstance(tree, Quoted):
            return tree.text
        if not isinstance(tree, Word):
            return build(tree, names, what)
        word, found = tree.text, {**_POLICIES, **_TRUTHS, **names}.get(tree.text)
        if isinstance(found, (Stratum, Place, Policy, bool)):
            return found
        if call.name == log_prob.__name__:
            known = [*_POLICIES, *(n for n, v in names.items() if isinstance(v, Policy))]
            remedy = f'name it where policies are declared: "policies": ["{word}"]'
            raise _unknown(f"{what}: no policy '{word}'", known, remedy)
        if key in PLACES and word not in names:
            known = [n for n, v in names.items() if isinstance(v, Stratum)]
            raise _unknown(f"{what}: no stratum '{word}'", known, suggest(word, known))
        return build(tree, names, what)

    twice = [f"{key}=" for key, times in Counter(k for k, _ in call.named).items() if times > 1]
    if twice:
        raise SpecError(
            f"{what}: an argument of '{call.name}' is given twice",
            required="each argument once",
            found=f"{', '.join(twice)} twice",
            remedy="leave one of them out",
        )
    return [value(t) for t in call.positional], {k: value(t, k) for k, t in call.named}


def called(
    function: Callable[..., T], call: Invocation, names: Names, what: str, required: str = "", form: str = ""
) -> T:
    """Returns what a function makes of a call's arguments. SpecError for arguments that it does not take."""
    positional, named = arguments(call, names, what)
    signature = inspect.signature(function)
    try:
        signature.bind(*positional, **named)
    except TypeError:
        required = required or f"{call.name}({', '.join(signature.parameters)})"
        raise SpecError(f"{what}: wrong arguments to '{form or call.name}'", required=required) from None
    return function(*positional, **named)


def parse(text: object, names: Names, what: str = "an expression") -> Expression:
    """Reads text and builds its Expression."""
    return as_expression(build(read(text, what), names, what))


W = TypeVar("W", bound="Written")


class Written(Declared):
    """An object that stores the text of the call that made it. Equal objects have equal texts."""

    written: str = ""
    METHODS: ClassVar[tuple[str, ...]] = ()  # methods that a written form may call on it

    def __repr__(self) -> str:
        return self.written


@dataclass(frozen=True)
class Constructor:
    """A registered function: the type of its result, and example calls for tests."""

    name: str
    kind: type[Written]
    function: Callable[..., Any]
    examples: tuple[str, ...]


CONSTRUCTORS: dict[str, Constructor] = {}


def constructor(
    kind: type[W], *, examples: tuple[str, ...], remedy: str = ""
) -> Callable[[Callable[..., W]], Callable[..., W]]:
    """Registers a function that declares a `kind`. `examples` are calls of it in the written grammar.

    `remedy` is what a call with wrong arguments is told.
    """

    def register(function: Callable[..., W]) -> Callable[..., W]:
        name, signature = function.__name__, inspect.signature(function)
        bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        form = f"{name}{signature.replace(parameters=bare, return_annotation=signature.empty)}"

        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> W:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise SpecError(f"{name}: {error}", required=form, remedy=remedy) from None
            values = {k: as_expression(v, f"{name}: argument '{k}'") for k, v in bound.arguments.items()}
            result = function(**values)
            parts = [write(v) if i < len(args) else f"{k}={write(v)}" for i, (k, v) in enumerate(values.items())]
            return result.model_copy(update={"written": f"{name}({', '.join(parts)})"})

        CONSTRUCTORS[name] = Constructor(name, kind, call, examples)
        return call

    return register


def construct(kind: type[W], text: object, names: Names, what: str, bare: Callable[[Expression], W] | None = None) -> W:
    """Returns the `kind` that a text declares. A bare expression goes to `bare`, if given. Raises SpecError."""
    with located(what):
        return _construct(kind, text, names, what, bare)


def _construct(kind: type[W], text: object, names: Names, what: str, bare: Callable[[Expression], W] | None) -> W:
    tree = read(text, what)
    if isinstance(tree, Invocation):
        if tree.name == kind.__name__ and bare is not None and len(tree.positional) == 1 and not tree.named:
            return _methods(bare(build(tree.positional[0], names, what)), tree.methods, names, what)
        found = CONSTRUCTORS.get(tree.name)
        if found is not None and issubclass(found.kind, kind):
            positional, named = arguments(tree, names, what)
            return _methods(found.function(*positional, **named), tree.methods, names, what)
    known = sorted(n for n, c in CONSTRUCTORS.items() if issubclass(c.kind, kind))
    is_call = isinstance(tree, Invocation) and (bool(tree.methods) or tree.name not in CALLS)
    forgotten = isinstance(tree, Word) and tree.text in known
    if bare is not None and not is_call and not forgotten:
        return bare(build(tree, names, what))
    word = tree.name if isinstance(tree, Invocation) else tree.text if isinstance(tree, Word) else ""
    raise SpecError(
        f"{what}: {str(text)[:80]!r} is no {kind.__name__.lower()}",
        required=f"a call of {', '.join(known)}" + (", or a formula" if bare is not None else ""),
        remedy=f"write {word}()" if forgotten else suggest(word, known),
    )


def _methods(value: W, methods: tuple[Invocation, ...], names: Names, what: str) -> W:
    for method in methods:
        known = {name: inspect.signature(getattr(value, name)) for name in type(value).METHODS}
        forms = ", ".join(f".{name}({', '.join(form.parameters)})" for name, form in known.items())
        required = f"for {an(type(value).__name__.lower())}: {forms or 'none'}"
        if method.name not in known:
            raise SpecError(f"{what}: unknown method '.{method.name}(...)'", required=required)
        value = called(getattr(value, method.name), method, names, what, required, f".{method.name}(...)")
    return value
