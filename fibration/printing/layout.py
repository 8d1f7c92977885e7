"""Lines of Python source: what fits on a line stays there, anything longer is broken as `ruff format` breaks it.

A document is a text, or one of the classes below around further documents.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

WIDTH = 100
STEP = 4


@dataclass(frozen=True)
class Bracket:
    """`head(item, item)`, or with other brackets; broken, each item has a line and a comma."""

    head: str
    items: tuple[Document, ...]
    ends: str = "()"
    is_broken: bool = False  # whether each item has a line even if all fit on one


@dataclass(frozen=True)
class Parentheses:
    """A document in parentheses of its own."""

    inner: Document


@dataclass(frozen=True)
class Prefixed:
    """A text directly before a document: `name=`, `"kl": `, `~`."""

    prefix: str
    inner: Document


@dataclass(frozen=True)
class Infix:
    """Operands with operators between them; broken, each further operand has a line that its operator begins."""

    first: Document
    rest: tuple[tuple[str, Document], ...]


@dataclass(frozen=True)
class Chain:
    """Methods called on a call: `token_mean().score().weigh(w)`; broken, each has a line if there are several."""

    base: Document
    methods: tuple[Bracket, ...]


@dataclass(frozen=True)
class Quotation:
    """A string; broken, it is written in pieces, one a line."""

    text: str


Document = str | Bracket | Parentheses | Prefixed | Infix | Chain | Quotation


def flat(document: Document) -> str:
    """Returns a document on one line."""
    if isinstance(document, str):
        return document
    if isinstance(document, Bracket):
        return f"{document.head}{document.ends[0]}{', '.join(map(flat, document.items))}{document.ends[1]}"
    if isinstance(document, Parentheses):
        return f"({flat(document.inner)})"
    if isinstance(document, Prefixed):
        return document.prefix + flat(document.inner)
    if isinstance(document, Infix):
        return flat(document.first) + "".join(f" {sign} {flat(operand)}" for sign, operand in document.rest)
    if isinstance(document, Chain):
        return flat(document.base) + "".join(f".{flat(m)}" for m in document.methods)
    return quoted(document.text)


def nesting(document: Document) -> int:
    """Returns how many brackets a document has in one another."""
    if isinstance(document, Bracket):
        return 1 + max(map(nesting, document.items), default=0)
    if isinstance(document, Parentheses):
        return 1 + nesting(document.inner)
    if isinstance(document, Prefixed):
        return nesting(document.inner)
    if isinstance(document, Infix):
        return max(nesting(document.first), *(nesting(operand) for _, operand in document.rest))
    return max(map(nesting, (document.base, *document.methods))) if isinstance(document, Chain) else 0


def lay(document: Document, indent: int = 0, column: int | None = None, after: int = 0) -> str:
    """Returns a document as lines of at most `WIDTH` characters, as far as names and numbers allow.

    Its text begins at `column` (default: `indent`) of a line with this indent, and `after` characters follow it.
    """
    column = indent if column is None else column
    whole = flat(document)
    is_broken = isinstance(document, Bracket) and document.is_broken
    if isinstance(document, str) or (not is_broken and column + len(whole) + after <= WIDTH):
        return whole
    margin, inner = " " * indent, indent + STEP
    if isinstance(document, Bracket):
        if not document.items:
            return whole
        lines = "".join(f"{' ' * inner}{lay(item, inner, inner, 1)},\n" for item in document.items)
        return f"{document.head}{document.ends[0]}\n{lines}{margin}{document.ends[1]}"
    if isinstance(document, Parentheses):
        return f"(\n{' ' * inner}{lay(document.inner, inner)}\n{margin})"
    if isinstance(document, Prefixed):
        return document.prefix + lay(document.inner, indent, column + len(document.prefix), after)
    if isinstance(document, Infix):
        lines = lay(document.first, indent, column)
        for sign, operand in document.rest:
            lines += f"\n{margin}{sign} {lay(operand, indent, indent + len(sign) + 1, after)}"
        return lines
    if isinstance(document, Chain):
        return _lay_chain(document, indent, column, after)
    pieces = _pieces(document.text, WIDTH - inner)
    return "(\n" + "".join(f"{' ' * inner}{piece}\n" for piece in pieces) + f"{margin})"


def _lay_chain(chain: Chain, indent: int, column: int, after: int) -> str:
    base, margin = flat(chain.base), " " * indent
    if len(chain.methods) > 1:
        return base + "".join(f"\n{margin}.{lay(m, indent, indent + 1, after)}" for m in chain.methods)
    (method,) = chain.methods
    if column + len(base) + len(method.head) + 2 > WIDTH:
        return f"{lay(chain.base, indent, column)}.{flat(method)}"
    return f"{base}.{lay(method, indent, column + len(base) + 1, after)}"


def assignment(name: str, document: Document) -> str:
    """Returns `name = document`.

    A sum or a product that is too long for its line is put into parentheses. One with a single operator is broken
    inside its last or its first bracket instead.
    """
    start = f"{name} = "
    if not isinstance(document, (Infix, Chain)) or len(start) + len(flat(document)) <= WIDTH:
        return start + lay(document, 0, len(start))
    if isinstance(document, Infix) and len(document.rest) == 1:
        head, last = _last_bracket(document)
        opening = getattr(last, "head", "") + "("
        if last is not None and len(start + head + opening) <= WIDTH:
            return start + head + lay(last, 0, WIDTH)
        ((sign, operand),) = document.rest
        tail = f" {sign} {flat(operand)}"
        if last is not None and isinstance(document.first, (Bracket, Parentheses)) and len(tail) < WIDTH:
            return start + lay(document.first, 0, WIDTH) + tail
    return start + lay(Parentheses(document), 0, len(start))


def _last_bracket(document: Document) -> tuple[str, Bracket | Parentheses | None]:
    """Returns the text before the bracket with which a document ends, and the bracket; None if it ends otherwise."""
    if isinstance(document, (Bracket, Parentheses)):
        return "", document
    if isinstance(document, Prefixed):
        head, last = _last_bracket(document.inner)
        return document.prefix + head, last
    if isinstance(document, Infix):
        *before, (sign, operand) = document.rest
        head, last = _last_bracket(operand)
        return f"{flat(Infix(document.first, tuple(before)))} {sign} {head}", last
    return "", None


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
