"""Writes parts of kernels: lines, coarse values by name, arrays in the workspace, arguments."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from fibration.backends.bodies import NOTHING, AnyNode, Functions
from fibration.backends.triton.language import RESERVED, TOKEN, WIDE, constant, fitted, typed
from fibration.compiler.arguments import INTEGER, REAL, Argument, signature
from fibration.compiler.ir import BATCH, Const, Input, Map, Names, Node, Pull, Scalar
from fibration.compiler.plan import Plan
from fibration.compiler.schedule import is_derivative
from fibration.errors import BackendError

NEUTRAL = {"sum": "0.0", "max": 'float("-inf")'}
HARMLESS = "1.0"  # the value of a lane without an element
# What the programs of a coarse stage share, and its Triton types: how many elements each of them does, how many have
# arrived, and the parts of sums.
MEMORY = {"own": "i32", "counter": "*i32", "parts": "*fp64"}


@dataclass(frozen=True)
class Kernel:
    """One kernel; without a text a call of a function that launches its own. `launch`: the statement that does it."""

    name: str
    arguments: tuple[Argument, ...]
    launch: str
    text: str = ""
    constants: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()  # of `MEMORY`
    spare: bool = False  # whether only metrics need it


class Writer:
    def __init__(self, name: str, plan: Plan, functions: Functions = NOTHING) -> None:
        self.name, self.plan, self.functions = name, plan, functions
        self.signature = signature(plan)
        self.arguments, self.called, self.size = self.signature.arguments, self.signature.name, self.signature.size
        self.names = dict(plan.names)
        words = Names({*self.names.values(), *RESERVED, *(a.name for a in self.arguments)})
        self.free, self.taken = words.free, words.taken
        self.first = {s: self.free(f"of_{s}") for s in dict.fromkeys(n.stratum for n in plan.saved)}
        self.starts, self.slots = self._slots()
        self.places = {n: i for i, n in enumerate(plan.saved)}  # in the workspace
        self.arrays = dict(self.slots)
        self.arrays |= {a.key[0]: a.name for a in self.arguments if a.kind == "vector"}
        strata = dict.fromkeys(n.stratum for n in plan.program.nodes())
        self.over = {s: self.free(f"over_{s}") for s in strata}  # by stratum, the name of the coarser element's index
        self.lines: list[str] = []
        self.known: set[Node] = set()  # coarse values that this kernel has under their name
        self.lone: set[Node] = set()  # known values that are one number, not one per element
        # operands of joined conditions: Triton's interpreter cannot join a condition of one number with one of a block
        self.joined = {o for n in plan.program.nodes() if isinstance(n, Map) and _joins(n.body) for o in n.inputs}
        self.local: set[str] = set()  # other names that are defined already
        self.coarse = False  # whether these lines may read values that the same launch has written
        self.inside = 0  # extra indentation of every line
        self.spare = plan.spare  # what stands under `if METRICS`
        self.ended = (0, 0)  # the number of lines before the end of such lines, and their indentation

    def _slots(self) -> tuple[dict[str, str], dict[Node, str]]:
        """The starts in the workspace: of each stratum's vectors, and of each vector after its stratum's first."""
        terms = ["work"]
        starts: dict[str, str] = {}
        slots: dict[Node, str] = {}
        for s, nodes in itertools.groupby(self.plan.saved, lambda n: n.stratum):
            starts[s], size = " + ".join(terms), "1" if s == BATCH else self.size(s)
            vectors = list(nodes)
            slots |= {n: " + ".join([self.first[s], *times(i, size)]) for i, n in enumerate(vectors)}
            terms += times(len(vectors), size)
        return starts, slots

    def line(self, depth: int, text: str = "") -> None:
        self.lines += fitted(text, "    " * (depth + self.inside))

    @contextmanager
    def if_metrics(self, depth: int, spare: bool = True) -> Iterator[None]:
        """Lines that are compiled with metrics alone, if they are `spare`."""
        if not spare or not self.spare:
            yield
            return
        before, everything = len(self.lines), self.spare
        known, lone, local = set(self.known), set(self.lone), set(self.local)
        self.inside, self.spare = self.inside + 1, frozenset()
        yield
        self.inside, self.spare = self.inside - 1, everything
        if len(self.lines) > before:
            if self.ended != (before, depth + self.inside):
                self.lines.insert(before, "    " * (depth + self.inside) + "if METRICS:")
            self.ended = len(self.lines), depth + self.inside
        # without metrics, other values are not there
        self.known, self.lone = self.known & (known | everything), self.lone & (lone | everything)
        self.local = local

    def wrapped(self, name: str, constants: list[str], doc: str, launch: str, spare: bool) -> Kernel:
        """The kernel of the lines written so far, which are then cleared. Only what they use becomes an argument."""
        body = "\n".join(self.lines)
        memory = "\n".join(self.starts[s] for s, word in self.first.items() if uses(body, word))
        used = tuple(a for a in self.arguments if uses(body, a.name) or uses(memory, a.name))
        shared = tuple(word for word in MEMORY if uses(body, word))
        numbers = [*(a.name for a in used if a.holds == INTEGER), *(word for word in shared if word == "own")]
        strides = {a.name for a in used if a.kind == "stride"}  # 0 or 1: an address takes two instructions less
        sizes = [f"    {n} = {n}.to(tl.int64)" for n in numbers if n not in strides]
        sizes += [f"    {word} = {self.starts[s]}" for s, word in self.first.items() if uses(body, word)]
        constants = [c for c in [*constants, "METRICS", "WIDE", "fill"] if uses(body, c)]
        names = [*(a.name for a in used if a.holds != REAL), *shared]
        wrapped = textwrap.wrap(", ".join(names) + ",", 112)
        constexprs = textwrap.wrap("".join(f"{c}:\0tl.constexpr, " for c in constants), 112, break_long_words=False)
        wrapped += [line.replace("\0", " ") for line in constexprs]
        decorator = f"@triton.jit(do_not_specialize=[{', '.join(map(repr, numbers))}])" if numbers else "@triton.jit"
        broken = textwrap.wrap(decorator.replace("'", '"'), 118, subsequent_indent=" " * 31, break_long_words=False)
        head = [*broken, f"def {name}(", *(f"    {w}" for w in wrapped), "):  # fmt: skip"]
        text = "\n".join([*head, textwrap.indent(doc, "    "), *sizes, body])
        self.lines, self.known, self.lone, self.local = [], set(), set(), set()
        self.ended = (0, 0)
        return Kernel(name, used, launch, text.rstrip(), tuple(constants), shared, spare)

    # ------------------------------------------------------------ coarse values, in float64

    def address(self, node: Node, element: str) -> str:
        if isinstance(node, Input) and node.kind == "parameter":
            element = f"{element} * {self.called('stride', node)}"
        return f"{self.arrays[node]} + {element}"

    def within(self, mask: str, other: str) -> str:
        """The arguments of a masked load. A sweep has no mask: segments that do not exist read what the last has."""
        mask = mask or ("live" if self.coarse else "")
        return f", mask={mask}, other={other}" if mask else ""

    def loaded(self, node: Node, element: str, mask: str = "") -> str:
        """A vector's value at an element, from its array."""
        fresh = self.coarse and not isinstance(node, Input)
        if node.stratum == BATCH:
            return f"tl.load({self.arrays[node]}" + (', cache_modifier=".cg")' if fresh else ")")
        if fresh:
            return f"fresh({self.address(node, element)}, live, {HARMLESS})"
        return f"tl.load({self.address(node, element)}{self.within(mask, HARMLESS)})"

    def need(self, depth: int, node: Node) -> None:
        """Loads a coarse value from memory under its name."""
        if node in self.known or isinstance(node, Const):
            return
        if isinstance(node, Pull) and node not in self.arrays:
            self.value(depth, node)
            return
        self.line(depth, f"{self.names[node]} = {self.loaded(node, 'b')}")
        self.known.add(node)
        if node.stratum == BATCH:
            self.lone.add(node)

    def value(self, depth: int, node: Node) -> None:
        """Computes one coarse value under its name."""
        name = self.names[node]
        if isinstance(node, Pull):
            if node.target == BATCH and node.operand in self.known:
                self.line(depth, f"{name} = {self.names[node.operand]}")
            elif node.target == BATCH and isinstance(node.operand, Const):
                self.line(depth, f"{name} = {typed(constant(node.operand.value), 'tl.float64')}")
            elif node.target == BATCH:
                self.line(depth, f"{name} = {self.loaded(node.operand, '')}")
            else:
                over = self.over[node.target]
                if over not in self.local:
                    self.local.add(over)
                    parent = self.called("parent", node.source, node.target)
                    self.line(depth, f"{over} = tl.load({parent} + b{self.within('', '0')})")
                self.line(depth, f"{name} = {self.loaded(node.operand, over)}")
            if node.target == BATCH:
                self.lone.add(node)
        elif isinstance(node, Map):
            for o in node.inputs:
                self.need(depth, o)
            alone = all(o in self.lone or isinstance(o, Const) for o in node.inputs)
            block = "" if alone or not _joins(node.body) else "[None]"
            operands = [
                constant(o.value) if isinstance(o, Const) else self.names[o] + block * (o in self.lone)
                for o in node.inputs
            ]
            self.map(depth, node, operands, True)
            if alone:
                self.lone.add(node)
        else:
            raise BackendError(f"the triton backend cannot emit {type(node).__name__}")
        self.known.add(node)

    def map(self, depth: int, node: Map, operands: list[str], wide: bool, form: str = "{}") -> None:
        """Computes a map of `operands` under its name, in float64 or in the tokens' precision."""
        name, (precision, language) = self.names[node], ("tl.float64", WIDE) if wide else ("REAL", TOKEN)
        key = self.plan.program.names.get(node)
        if key and is_derivative(key) and not name.startswith(key.word):
            self.line(depth, f"# {key} too, which equals it")
        before, text = language.write(node.body, operands, name, self.taken, self.functions)
        for part, shared in before:
            self.line(depth, f"{part} = {shared}")
        self.line(depth, f"{name} = {form.format(typed(text, precision))}")

    def in_turn(self, depth: int, nodes: Iterable[AnyNode]) -> Iterator[AnyNode]:
        """The nodes of the loss, then those of metrics, under whose condition the caller's lines stand."""
        nodes, spare = list(nodes), self.spare
        yield from (n for n in nodes if n not in spare)
        with self.if_metrics(depth):
            yield from (n for n in nodes if n in spare)

    def save(self, depth: int, node: Node) -> None:
        if node.stratum == BATCH:
            self.line(depth, f"tl.store({self.arrays[node]}, {self.names[node]})")
        elif self.coarse or node in self.lone:
            self.line(depth, f"tl.store({self.arrays[node]} + b, {self.names[node]}, mask=live)")
        else:
            self.line(depth, f"save({self.arrays[node]} + b, {self.names[node]}, live, BLOCK_T)")


def times(number: int, size: str) -> list[str]:
    """The term `number · size` of a sum, as text; nothing for 0."""
    return [str(number) if size == "1" else f"{number} * {size}".removeprefix("1 * ")] if number else []


def _joins(body: Scalar) -> bool:
    """Whether a body joins conditions."""
    return body.op in ("and", "or") or any(map(_joins, body.args))


def uses(text: str, word: str) -> bool:
    """Whether code mentions `word`, outside comments."""
    return word in _words(text)


@lru_cache(maxsize=16)
def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"(?<![\w.])\w+", re.sub(r"#.*", "", text)))
