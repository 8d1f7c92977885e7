"""Makes Triton's interpreter faster without changing its results.

The interpreter repeats work, which this module caches or shortens:

- At every launch and every call of a helper, it searches the whole language for builtins to replace.
- It finds the lines of a function with Python's tokenizer, twice.
- It builds a table of all dtypes to look one up.
- It wraps the numbers of a shape one by one for every tensor.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
from collections.abc import Callable
from typing import Any

import pytest


def quicken(patch: pytest.MonkeyPatch) -> None:
    """Patch the interpreter, if Triton is installed in a release with these internals."""
    try:
        from triton.runtime import interpreter
    except ImportError:
        return
    made: Any = interpreter
    if not hasattr(made, "_LangPatchScope"):
        return
    tl, replaced, dtype_of, rewritten = made.tl, made._patch_lang, made._get_np_dtype, made.FunctionRewriter.rewrite_ast

    @functools.cache
    def languages(fn: Callable) -> list[Any]:
        return [module for module in (tl, tl.core) if any(value is module for value in fn.__globals__.values())]

    def replace(fn: Callable) -> Any:
        is_whole = any(tl.core.is_builtin(language.load) for language in languages(fn))
        return replaced(fn) if is_whole else made._LangPatchScope()

    @functools.cache  # the members before any replacement
    def builtins(package: Any) -> list[tuple[str, Any]]:
        return [(name, member) for name, member in inspect.getmembers(package) if tl.core.is_builtin(member)]

    def replace_builtins(package: Any, builder: Any, scope: Any) -> None:
        for name, member in builtins(package):
            made._patch_attr(package, name, member, builder, scope)

    numbers = functools.cache(dtype_of)

    def dtype(of: Any) -> Any:
        element = of.element_ty if isinstance(of, tl.block_type) else of
        return dtype_of(element) if isinstance(element, tl.pointer_type) else numbers(element)

    def rewrite(self: Any) -> Callable:
        code = self.fn.__code__
        lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
        if not lines or not lines[0].startswith(("@", "def ")):  # a nested function
            return rewritten(self)
        first = next(i for i, line in enumerate(lines) if line.startswith("def "))
        end = next((i for i, line in enumerate(lines) if i > first and line[0] not in " )#\n"), None)
        self.filename = code.co_filename
        above = "\n" * (code.co_firstlineno + first - 1)  # keeps line numbers
        tree = self.ast_transformer.visit(ast.parse(above + "".join(lines[first:end])))
        return self._compile_and_exec(ast.fix_missing_locations(tree))

    @functools.cache
    def shaped(shape: tuple[int, ...]) -> tuple[Any, Any, Any]:
        own = tl.core.tuple(list(shape))
        return own, made.triton._utils.validate_block_shape(own), tl.core.tuple([tl.constexpr(n) for n in shape])

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        plain = tuple(tl.core._unwrap_shape(shape))
        if not plain:
            raise TypeError("0d block_type is forbidden")
        self.element_ty, (self.shape, self.numel, _) = element_ty, shaped(plain)
        self.name = f"<{self.shape}, {element_ty}>"

    def tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        _, numel, self.shape = shaped(tuple(type.shape.values) if type.is_block() else ())
        self.numel = tl.constexpr(numel)

    patch.setattr(made, "_patch_lang", replace)
    if made.triton.__version__.startswith("3.7."):
        patch.setattr(tl.block_type, "__init__", block)
        patch.setattr(tl.tensor, "__init__", tensor)
    patch.setattr(made, "_patch_builtin", replace_builtins)
    patch.setattr(made, "_get_np_dtype", dtype)
    patch.setattr(made.FunctionRewriter, "rewrite_ast", rewrite)
