"""Whole IR graphs: outputs over inputs, their names, and the invariants that every stage keeps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from weakref import WeakSet

from fibration.compiler import ir
from fibration.compiler.ir import (
    BATCH,
    Const,
    Input,
    Key,
    Map,
    Matrix,
    Mix,
    Names,
    Node,
    Pull,
    Push,
    Quantile,
    Scalar,
    Scan,
)
from fibration.errors import IRError
from fibration.language.operators import PRIMITIVES

# Words of results that all leaves fill together.
PER_TOKEN = ("gated_ratio", "coefficients", "log_ratio_gradient", "advantages")


@dataclass(frozen=True)
class Program:
    """Outputs over inputs. `names` are the user's words for some nodes, for readable output; `gates` those for the
    gates of the strata."""

    name: str
    leaves: tuple[str, ...]
    outputs: Mapping[Key, Node]
    names: Mapping[Node, Key]
    gates: Mapping[str, str] = field(default_factory=dict)

    def part(self, word: str, leaf: str) -> Key:
        """The key of one leaf's part of a vector per token."""
        return ir.part(word, leaf, self.leaves)

    def token_input(self, kind: str, leaf: str, key: tuple[str, ...] = ()) -> Input:
        return ir.token_input(kind, leaf, self.leaves, key)

    def results(self) -> dict[Key, dict[str, Key]]:
        """For each result in the shape of the batch, the output of every leaf that fills it."""
        found: dict[Key, dict[str, Key]] = {}
        for key, node in self.outputs.items():
            if node.stratum in self.leaves:
                found.setdefault(Key(key.word) if key.word in PER_TOKEN else key, {})[node.stratum] = key
        return found

    @cached_property
    def called(self) -> dict[Key, str]:
        """The name of every output and result."""
        names = Names()
        return {key: names.free(str(key)) for key in dict.fromkeys((*self.outputs, *self.results()))}

    @cached_property
    def given(self) -> dict[Input | Matrix, str]:
        """The name of every input and matrix. If two names are equal, a parameter's gets a number."""
        names = Names()
        every: list[Input | Matrix] = [*self.inputs, *self.matrices]
        every.sort(key=lambda i: isinstance(i, Input) and i.kind == "parameter")  # stable
        return {i: names.free(i.word) for i in every}

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """The matrices that the program multiplies by."""
        return tuple(dict.fromkeys(n.matrix for n in self.nodes() if isinstance(n, Mix)))

    def nodes(self) -> Iterator[Node]:
        """Every node that an output needs, operands before users, in a fixed order."""
        return iter(self._nodes)

    @cached_property
    def _nodes(self) -> tuple[Node, ...]:
        found: list[Node] = []
        seen: set[Node] = set()
        stack: list[tuple[Node, bool]] = [(n, False) for n in reversed(list(self.outputs.values()))]
        while stack:
            node, ready = stack.pop()
            if ready:
                found.append(node)
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack.extend((o, False) for o in reversed(node.operands) if o not in seen)
        return tuple(found)

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        return tuple(n for n in self.nodes() if isinstance(n, Input))

    @cached_property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """The fibrations that the program sums, scans or broadcasts along, or takes quantiles over."""
        found: dict[tuple[str, str], None] = {}
        for n in self.nodes():
            if isinstance(n, (Push, Pull)):
                found[n.source, n.target] = None
            elif isinstance(n, (Quantile, Scan)):
                found.update(dict.fromkeys((s, n.target) for s in n.sources))
        return tuple(found)

    @cached_property
    def orders(self) -> tuple[tuple[str, ...], ...]:
        """The orders of its scans: a target, then the strata whose elements are in order over it."""
        return tuple(dict.fromkeys(n.order for n in self.nodes() if isinstance(n, Scan)))

    def mapped(
        self,
        rule: Callable[[Node], Node],
        before: Callable[[Node], Node] = lambda node: node,
        unchanged: Collection[Node] = (),
    ) -> Program:
        """The program with `rule` applied to every node, operands first; `unchanged` nodes only get new operands.

        `before` may replace a node before that.
        """
        done: dict[Node, Node] = {}
        for node in self.nodes():
            made = ir.with_operands(before(node), done)
            done[node] = made if node in unchanged else rule(made)
        names: dict[Node, Key] = {}
        for node, key in self.names.items():
            if node in done:
                names.setdefault(done[node], key)
        return replace(self, outputs={k: done[v] for k, v in self.outputs.items()}, names=names)

    def validate(self) -> Program:
        """Returns the program; raises IRError with the node if an invariant does not hold."""
        for node in self.nodes():
            if node in _SOUND:
                continue
            problem = _problem(node)
            if problem:
                raise IRError(f"program '{self.name}': {problem}", found=describe(node))
            _SOUND.add(node)
        for name in [*self.called.values(), *map(str, self.names.values()), *self.given.values()]:
            if not name.isidentifier():
                raise IRError(f"program '{self.name}': {name!r} is no identifier")
        return self

    def __str__(self) -> str:
        label = {node: f"%{i}" for i, node in enumerate(self.nodes())}
        lines = [f"program {self.name} ({'leaf' if len(self.leaves) == 1 else 'leaves'} {', '.join(self.leaves)})"]
        for node in self.nodes():
            note = f"   # {self.names[node]}" if node in self.names else ""
            what = f"input {self.given[node]}" if isinstance(node, Input) else describe(node, label)
            lines.append(f"  {label[node]}: {node.stratum} = {what}{note}")
        return "\n".join([*lines, *(f"  return {self.called[k]} = {label[v]}" for k, v in self.outputs.items())])


_SOUND: WeakSet[Node] = WeakSet()  # checked once: nodes never change, and most are in several programs


def describe(node: Node, label: Mapping[Node, str] | None = None) -> str:
    """One line for a node."""
    shown = ", ".join((label or {}).get(o, "...") for o in node.operands)
    if isinstance(node, Input):
        return f"input {node.word}"
    if isinstance(node, Const):
        return repr(float(node.value))
    if isinstance(node, Push):
        return f"push[{node.source} -> {node.target}, {'wide ' * node.wide}{node.reduce}]({shown})"
    if isinstance(node, Pull):
        return f"pull[{node.source} -> {node.target}]({shown})"
    if isinstance(node, Mix):
        return f"mix[{node.into} <- {node.of}{', transposed' if node.transposed else ''}]({shown})"
    if isinstance(node, Quantile):
        return f"quantile[{', '.join(node.sources)} -> {node.target}]({shown})"
    if isinstance(node, Scan):
        way = "before" if node.forward else "after"
        return f"scan[{way}, {', '.join(node.sources)} -> {node.target}, into {node.into}]({shown})"
    return f"map[{node.body}]({shown})" if isinstance(node, Map) else f"detach({shown})"


def _problem(node: Node) -> str:
    if isinstance(node, Push) and node.operand.stratum != node.source:
        return f"a push from {node.source} of a vector over {node.operand.stratum}"
    if isinstance(node, Push) and node.reduce not in ("sum", "max"):
        return f"a push with the reduction {node.reduce!r}"
    if isinstance(node, Pull) and node.operand.stratum != node.target:
        return f"a pull from {node.target} of a vector over {node.operand.stratum}"
    if isinstance(node, Mix) and node.operand.stratum != node.source:
        return f"a mix of {node.source} with a vector over {node.operand.stratum}"
    if isinstance(node, Quantile):
        if node.level.stratum != node.target:
            return f"a quantile over {node.target} at a level over {node.level.stratum}"
        if not node.values or len(set(node.sources)) < len(node.values):
            return f"a quantile of {len(node.values)} vectors over {', '.join(node.sources) or 'nothing'}"
    if isinstance(node, Scan):
        if node.discount.stratum != BATCH:
            return f"a scan with a discount over {node.discount.stratum}"
        if node.into not in node.sources or len(set(node.sources)) < len(node.values):
            return f"a scan into {node.into} of {len(node.values)} vectors over {', '.join(node.sources) or 'nothing'}"
    if isinstance(node, Map):
        strata = {o.stratum for o in node.inputs}
        if len(strata) != 1:
            return f"a map over several strata: {', '.join(sorted(strata))}"
        return _scalar_problem(node.body, len(node.inputs), False)
    return ""


def _scalar_problem(body: Scalar, arity: int, condition: bool) -> str:
    if ir.SCALAR_ARITY.get(body.op) != len(body.args):
        return f"the scalar operator {body.op!r} with {len(body.args)} arguments"
    if (body.op in ir.CONDITIONS) != condition:
        return f"{body.op!r} where a {'condition' if condition else 'number'} belongs"
    if body.op == "arg" and not 0 <= int(body.value or 0) < arity:
        return f"the unbound argument {body}"
    conditions = PRIMITIVES[body.op].conditions if body.args else frozenset()
    problems = (_scalar_problem(a, arity, i in conditions) for i, a in enumerate(body.args))
    return next(filter(None, problems), "")
