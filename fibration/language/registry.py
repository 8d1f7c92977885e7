"""The registry of constructors: the functions that declare gates, kernels, decompositions and objectives.

Decorating a constructor records how its result was written, lets JSON and the command line name it, and adds it, with
its examples, to the tests of laws, derivatives and backends.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from fibration.errors import SpecError, an, located, suggest
from fibration.language.declared import Declared
from fibration.language.expressions import Expression, as_expression, write
from fibration.language.grammar import CALLS, Invocation, Names, Word, arguments, build, called, read

T = TypeVar("T", bound="Written")


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
    kind: type[T], *, examples: tuple[str, ...], remedy: str = ""
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Registers a function that declares a `kind`. `examples` are calls of it in the written grammar.

    `remedy` is what a call with wrong arguments is told.
    """

    def register(function: Callable[..., T]) -> Callable[..., T]:
        name, signature = function.__name__, inspect.signature(function)
        bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        form = f"{name}{signature.replace(parameters=bare, return_annotation=signature.empty)}"

        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> T:
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


def construct(kind: type[T], text: object, names: Names, what: str, bare: Callable[[Expression], T] | None = None) -> T:
    """Returns the `kind` that a text declares. A bare expression goes to `bare`, if given. Raises SpecError."""
    with located(what):
        return _construct(kind, text, names, what, bare)


def _construct(kind: type[T], text: object, names: Names, what: str, bare: Callable[[Expression], T] | None) -> T:
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


def _methods(value: T, methods: tuple[Invocation, ...], names: Names, what: str) -> T:
    for method in methods:
        known = {name: inspect.signature(getattr(value, name)) for name in type(value).METHODS}
        forms = ", ".join(f".{name}({', '.join(form.parameters)})" for name, form in known.items())
        required = f"for {an(type(value).__name__.lower())}: {forms or 'none'}"
        if method.name not in known:
            raise SpecError(f"{what}: unknown method '.{method.name}(...)'", required=required)
        value = called(getattr(value, method.name), method, names, what, required, f".{method.name}(...)")
    return value
