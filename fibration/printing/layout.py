"""Lines of Python source and of text: what fits on a line stays there, anything longer is broken at its brackets."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

WIDTH = 100
STEP = 4
Part = tuple[str, str]  # what stands before an expression, such as `name=` or `+ `, and the expression


def call(function: str, /, *items: str, **named: str | None) -> str:
    """Returns a call on one line. An argument that is None is left out."""
    given = (f"{key}={value}" for key, value in named.items() if value is not None)
    return f"{function}({', '.join((*items, *given))})"


def laid(text: str, indent: int = 0, column: int | None = None, after: int = 0, is_broken: bool = False) -> str:
    """Returns an expression, given on one line, as lines of at most `WIDTH` characters, as far as names allow.

    It begins at `column` (default: `indent`) of a line with this indent, and `after` characters follow it. `is_broken`:
    each item of its bracket has a line in any case.
    """
    column = indent if column is None else column
    if not is_broken and column + len(text) + after <= WIDTH:
        return text
    node, margin, inner = ast.parse(text, mode="eval").body, " " * indent, indent + STEP

    def written(part: Part, at: int, after: int = 0) -> str:
        return part[0] + laid(part[1], at, at + len(part[0]), after)

    def said(e: ast.AST) -> str:
        return ast.get_source_segment(text, e) or ""

    if node.col_offset:
        return f"(\n{' ' * inner}{laid(text[1:-1], inner)}\n{margin})"
    if isinstance(node, (ast.BinOp, ast.Compare)):
        return f"\n{margin}".join(written(part, indent, after) for part in _operands(text, node))
    if isinstance(node, ast.UnaryOp):
        return written((text[0], text[1:]), indent, after)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        pieces = "".join(f"{' ' * inner}{piece}\n" for piece in _pieces(node.value, WIDTH - inner))
        return f"(\n{pieces}{margin})"
    if isinstance(node, ast.Dict):
        items = [(f"{said(k)}: ", said(v)) for k, v in zip(node.keys, node.values, strict=True) if k]
    elif isinstance(node, (ast.List, ast.Tuple)):
        items = [("", said(e)) for e in node.elts]
    elif isinstance(node, ast.Call):
        items = [("", said(e)) for e in node.args] + [(f"{k.arg}=", said(k.value)) for k in node.keywords]
    else:
        return text
    base: ast.expr = node
    methods = list[str]()
    while isinstance(base, ast.Call) and isinstance(base.func, ast.Attribute):
        methods.insert(0, said(base)[len(said(base.func.value)) + 1 :])
        base = base.func.value
    head = said(node.func) if isinstance(node, ast.Call) else ""
    if len(methods) > 1 or (methods and column + len(head) >= WIDTH):
        each = (laid(method, indent, indent + 1, after) for method in methods)
        return f"\n{margin}.".join([laid(said(base), indent, column), *each])
    if not items:
        return text
    lines = "".join(f"{' ' * inner}{written(item, inner, 1)},\n" for item in items)
    return f"{head}{text[len(head)]}\n{lines}{margin}{text[-1]}"


def _operands(text: str, node: ast.BinOp | ast.Compare) -> Iterator[Part]:
    """Yields the operands of operators that bind alike, each further one with its operator before it."""
    right = node.right if isinstance(node, ast.BinOp) else node.comparators[0]
    data = text.encode()
    start, end = node.left.end_col_offset or 0, right.col_offset
    closed, sign, opened = re.fullmatch(r"(\)*) ?(\S+?) ?(\(*)", data[start:end].decode()).groups()  # type: ignore[union-attr]
    left = data[:start].decode() + closed
    inner = node.left
    if isinstance(node, ast.BinOp) and isinstance(inner, ast.BinOp) and not closed and _binds(inner) == _binds(node):
        yield from _operands(left, inner)
    else:
        yield "", left
    yield f"{sign} ", opened + data[end:].decode()


def _binds(node: ast.BinOp) -> type:
    """The operator, one for those that may stand beside it without brackets."""
    return {ast.Sub: ast.Add, ast.Div: ast.Mult}.get(type(node.op), type(node.op))


def nesting(text: str) -> int:
    """Returns how many brackets an expression has in one another."""
    deepest = depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def assignment(name: str, text: str, is_broken: bool = False) -> str:
    """Returns `name = text`. A sum or a product that is too long for its line is put into parentheses."""
    start = f"{name} = "
    if len(start) + len(text) > WIDTH and isinstance(ast.parse(text, mode="eval").body, (ast.BinOp, ast.Compare)):
        text = f"({text})"
    return start + laid(text, 0, len(start), is_broken=is_broken)


def wrapped(text: str, width: int) -> str:
    """Returns lines of at most `width` characters, as far as words allow. They go on below the column they are in."""
    return "\n".join(part for line in text.split("\n") for part in _wrap(line, width))


def _margin(line: str) -> str:
    """Returns what begins the lines that go on from a line: its blanks, bars of a tree, and the mark of a comment."""
    return re.match("[ │├└─]*(# )?", line)[0].translate(str.maketrans("├└─", "│  "))  # type: ignore[index]


def _wrap(line: str, width: int) -> list[str]:
    margin = _margin(line)
    column = re.match(r"(\S+ )*\S+ {2,}(?=\S)", line[len(margin) :])
    step = column.end() if column and column.end() <= width // 2 else 0 if margin.endswith("# ") else STEP
    given = {"subsequent_indent": margin + " " * step, "break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(line, width, **given) or [""]  # type: ignore[arg-type]


def folded(text: str, width: int) -> str:
    """Returns lines as `wrapped` does, but the arguments of a call that is most of its line have a line each."""
    return "\n".join(part for line in text.split("\n") for part in _fold(line, width))


def _fold(line: str, width: int) -> list[str]:
    opened: list[list[int]] = []  # the places of a bracket and of the commas in it
    calls: list[list[int]] = []
    for i, character in enumerate(line):
        if character in "([{":
            opened.append([i])
        elif character == "," and opened:
            opened[-1].append(i)
        elif character in ")]}" and opened:
            call = opened.pop()
            calls += [[*call, i]] if not opened and len(call) > 1 else []
    start, *commas, end = max(calls, key=lambda places: places[-1] - places[0], default=[0, 0])
    if len(line) <= width or end - start < len(line) // 2:
        return _wrap(line, width)
    margin, lines = _margin(line), _wrap(line[: start + 1], width)
    for low, high in zip((start, *commas), (*commas, end), strict=True):
        lines += _fold(f"{margin}  {line[low + 1 : high + (high != end)].strip()}", width)
    return lines + _fold(margin + line[end:], width)


def quoted(text: str) -> str:
    """Returns a string literal of any text, in double quotes unless single ones need fewer escapes."""
    body = repr("'\"" + text)[4:-1]  # with both quotes in it, `repr` escapes the single ones alone
    if text.count('"') > text.count("'"):
        return f"'{body}'"
    other = {"\\'": "'", '"': '\\"'}
    return '"' + re.sub(r'\\.|"', lambda found: other.get(found[0], found[0]), body, flags=re.DOTALL) + '"'


def _pieces(text: str, width: int) -> list[str]:
    """Returns literals of at most `width` characters that make the text together, cut after spaces where it has any."""
    pieces = []
    while text:
        length = min(len(text), width)
        while length > 1 and len(quoted(text[:length])) > width:
            length -= 1
        cut = text.rfind(" ", 0, length) + 1 if length < len(text) else 0
        pieces.append(quoted(text[: cut or length]))
        text = text[cut or length :]
    return pieces
