"""The arguments of a compiled program, in order. They are the same for every fused backend.

Coarse vectors that outlive their stage, results included, share one float64 workspace, in the order of `Plan.saved`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from fibration.compiler.ir import BATCH, Input, Key, Mix, Names, Pull, Push, without_macros
from fibration.compiler.plan import Plan
from fibration.errors import IRError
from fibration.language.hierarchy import Hierarchy, adds_up_tokens
from fibration.language.outline import whole_batch

# What an argument holds.
INTEGER, REAL = "integer", "real"  # one number, passed by value
INTEGERS, REALS, WORKSPACE = "integers", "reals", "workspace"  # int64; float64; float64 that is written
FLOATS, RESULTS = "floats", "results"  # the caller's dtype; the dtype of the results, written
HOLDS = (INTEGER, REAL, INTEGERS, REALS, WORKSPACE, FLOATS, RESULTS)

# Who makes an argument, for a caller without this library.
LAID_OUT, CALLER, MADE = "laid out", "caller", "made"  # `lay_out`; the caller; the call itself


@dataclass(frozen=True)
class Kind:
    """One kind of argument: what it holds, who makes it, a description, and whether it may be None."""

    holds: str
    source: str
    about: str
    may_lack: bool = False


KINDS: Mapping[str, Kind] = {
    "size": Kind(INTEGER, MADE, "the number of elements of a stratum"),
    "offsets": Kind(INTEGERS, LAID_OUT, "the number of tokens of a leaf before each segment"),
    "starts": Kind(INTEGERS, LAID_OUT, "the place of the first token of each segment"),
    "positions": Kind(INTEGERS, LAID_OUT, "the place of each token; None if contiguous", may_lack=True),
    "tokens": Kind(INTEGERS, LAID_OUT, "the number of each token; None if in this order", may_lack=True),
    "by_length": Kind(INTEGERS, LAID_OUT, "the segments, longest first; None: in their order", may_lack=True),
    "token": Kind(FLOATS, CALLER, "a tensor over the tokens, in the batch's own layout"),
    "advantage": Kind(FLOATS, CALLER, "a tensor over the tokens, or one number per row"),
    "rows": Kind(INTEGERS, CALLER, "the row of the batch that each segment lies in", may_lack=True),
    "vector": Kind(REALS, CALLER, "one number per element"),
    "stride": Kind(INTEGER, MADE, "the stride of a vector: 0 if one number serves all elements"),
    "matrix": Kind(REALS, CALLER, "[into, of]"),
    "parent": Kind(INTEGERS, LAID_OUT, "the target under each element"),
    "order": Kind(INTEGERS, LAID_OUT, "the elements sorted by target; None if sorted", may_lack=True),
    "members": Kind(INTEGERS, LAID_OUT, "the number of elements before each target"),
    "sequence": Kind(INTEGERS, LAID_OUT, "elements of several strata in order; None if in order", may_lack=True),
    "sequence_members": Kind(INTEGERS, LAID_OUT, "the number of such elements before each target"),
    "result": Kind(RESULTS, MADE, "a token output"),
    "places": Kind(INTEGER, MADE, "the number of places of a token tensor"),
    "fill": Kind(REAL, MADE, "the value of masked places"),
    "work": Kind(WORKSPACE, MADE, "the workspace"),
}
LAYOUT = ("offsets", "starts", "positions", "tokens", "by_length")


@dataclass(frozen=True)
class TokenTensor:
    """An input over tokens that the caller passes as a tensor of the batch's shape."""

    called: str  # the caller's name for it
    argument: str
    note: str


TOKENS: Mapping[str, TokenTensor] = {
    "log_prob": TokenTensor("log_probs", "log_probs", "log π of every token, current policy"),
    "old_log_prob": TokenTensor("old_log_probs", "old_log_probs", "log π of every token, old policy"),
    "log_ratio": TokenTensor("log_ratio", "log_ratios", "log π - log π_old"),
    "cotangent": TokenTensor("cotangent", "cotangents", "∂/∂ratio"),
    "policy_log_prob": TokenTensor("policies[{!r}]", "{}_log_probs", "log π under the policy {}"),
}


# Names of the tensors with one number per token, or per row of the batch. A program reads at most one of them.
GIVEN: Mapping[str, str] = {"advantage": "advantages", "reward": "rewards"}


def tensor_of(kind: str, *key: str) -> TokenTensor:
    """The row of `TOKENS` for `kind`, with `key`, the name of a policy, filled in."""
    row = TOKENS[kind]
    return TokenTensor(*(text.format(*key) for text in (row.called, row.argument, row.note)))


def token_tensor(node: Input) -> TokenTensor:
    return tensor_of(node.kind, *node.key)


Row = TypeVar("Row")


def for_each(what: str, wanted: Iterable[str], rows: Mapping[str, Row]) -> Mapping[str, Row]:
    """Returns `rows`; an IRError, at import, if they do not have exactly one row for each of `wanted`."""
    for word in sorted(set(wanted) ^ rows.keys()):
        raise IRError(f"{what}: {'no row' if word in wanted else 'a row too many'} for '{word}'")
    return rows


@dataclass(frozen=True)
class Argument:
    """One argument. `kind` is its row of `KINDS`, `key` its object, `note` its description in generated code."""

    name: str
    kind: str
    key: tuple[Any, ...]
    note: str

    @property
    def holds(self) -> str:
        return KINDS[self.kind].holds

    @property
    def may_lack(self) -> bool:
        return KINDS[self.kind].may_lack


@dataclass(frozen=True)
class Signature:
    """The arguments of a program, each once, with unique names.

    `layouts[segments, leaf]` is the prefix of the arguments that locate a leaf's tokens in segments.
    """

    arguments: tuple[Argument, ...]
    layouts: Mapping[tuple[str, str], str]

    @cached_property
    def _names(self) -> dict[tuple[Any, ...], str]:
        return {(a.kind, *a.key): a.name for a in self.arguments}

    def name(self, kind: str, *key: Any) -> str:
        return self._names[kind, *key]

    def size(self, stratum: str) -> str:
        return "1" if stratum == BATCH else self.name("size", stratum)


def signature(plan: Plan) -> Signature:
    """The arguments of a program: with metrics and without, the same."""
    return _Arguments(plan.of or plan).signature()


class _Arguments:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.program = plan, plan.program
        self.names = Names(plan.reserved - {"places", "fill", "work"})  # arguments of every program
        self.found: dict[tuple[Any, ...], Argument] = {}
        self.layouts: dict[tuple[str, str], str] = {}

    def add(self, wish: str, kind: str, key: tuple[Any, ...], note: str) -> None:
        if (kind, *key) not in self.found:
            self.found[kind, *key] = Argument(self.names.free(without_macros(wish)), kind, key, note)

    def signature(self) -> Signature:
        self.sizes()
        self.layout()
        self.tokens()
        self.vectors()
        self.fibres()
        results = self.program.results()
        for key in results:
            self.add(f"{self.program.called[key]}_out", "result", (key,), "result, per token")
        if results:
            self.add("places", "places", (), "the number of places of a token tensor")
            self.add("fill", "fill", (), "the value of masked places of a result")
        self.add("work", "work", (), "float64 workspace: see below")
        return Signature(tuple(self.found.values()), self.layouts)

    def sizes(self) -> None:
        strata = dict.fromkeys(n.stratum for n in self.plan.saved)
        strata |= dict.fromkeys(sweep.segments for sweep in self.plan.sweeps)
        for node in self.program.nodes():
            if isinstance(node, Push) and node.source not in self.program.leaves:
                strata.setdefault(node.target)
            if isinstance(node, Mix):
                strata |= {node.into: None, node.of: None}
        for order in self.plan.orders:
            strata |= dict.fromkeys(order)
        for s in strata:
            if s != BATCH:
                self.add(f"n_{s}", "size", (s,), f"the number of {s} elements")

    def layout(self) -> None:
        several = len(self.program.leaves) > 1
        for s, leaf in dict.fromkeys((sweep.segments, leaf) for sweep in self.plan.sweeps for leaf in sweep.leaves):
            wish, tokens = (f"{leaf}_in_{s}", f"{leaf} elements") if several else (s, "tokens")
            word = self.layouts[s, leaf] = self.names.free(without_macros(wish), *(f"_{kind}" for kind in LAYOUT))
            size = self.found["size", s].name
            notes = (
                f"[{size} + 1] the number of {tokens} before each {s}",
                f"[{size}] the place of its first token",
                f"[{tokens}] the place of each token; None if contiguous",
                f"[{tokens}] the number of each token; None if in this order",
                f"[{size}] the {s} elements, longest first; None if in this order",
            )
            for kind, note in zip(LAYOUT, notes, strict=True):
                if kind != "by_length" or self.plan.by_length:
                    self.found[kind, s, leaf] = Argument(f"{word}_{kind}", kind, (s, leaf), note)

    def tokens(self) -> None:
        reads: dict[str, dict[Input, None]] = {}
        for sweep in self.plan.sweeps:
            reads.setdefault(sweep.segments, {}).update({i: None for p in sweep.passes for i in p.reads})
        read = [i for inputs in reads.values() for i in inputs]
        for kind in TOKENS:
            for i in read:
                if i.kind == kind:
                    tensor = token_tensor(i)
                    self.add(tensor.argument, "token", (i.kind, *i.key), tensor.note)
        for kind in dict.fromkeys(i.kind for i in read if i.kind in GIVEN):
            self.add(GIVEN[kind], "advantage", (), "per token, or per row of the batch")
        for s, inputs in reads.items():
            if any(i.kind in GIVEN for i in inputs):
                note = f"[{self.found['size', s].name}] the row of each {s}; None if advantages are per token"
                self.add(f"{s}_rows", "rows", (s,), note)

    def vectors(self) -> None:
        for i in self.program.inputs:
            if i.kind not in TOKENS and not (i.kind in GIVEN and i.stratum in self.program.leaves):
                word = self.program.given[i]
                self.add(f"{word}_of", "vector", (i,), f"[{i.stratum}]")
                if i.kind == "parameter":
                    self.add(f"{word}_stride", "stride", (i,), "0 if one number serves all elements, else 1")
        for m in self.program.matrices:
            note = f"[{m.into}, {m.of}] of the projection: an index's matrix({m.into!r}, {m.of!r})"
            self.add(self.program.given[m], "matrix", (m,), note)

    def fibres(self) -> None:
        for node in self.program.nodes():
            if isinstance(node, Pull) and node.target != BATCH and not self.is_broadcast(node):
                self.add(f"{node.target}_of_{node.source}", "parent", (node.source, node.target), f"[{node.source}]")
            if isinstance(node, Push) and node.source not in self.program.leaves:
                self.fibre(node.source, node.target)
        for quantile in self.plan.quantiles:
            for leaf in quantile.sources:
                self.fibre(leaf, quantile.target)

        for order in self.plan.orders:
            target, sources = order[0], "_and_".join(order[1:])
            note = f"[{' + '.join(order[1:])}] numbers of elements in order, {target} by {target}; None if in order"
            self.add(f"{sources}_along_{target}", "sequence", order, note)
            before = f"[{target} + 1] the number of elements before each {target}"
            self.add(f"{sources}_up_to_{target}", "sequence_members", order, before)

    def fibre(self, a: str, b: str) -> None:
        self.add(f"{a}_by_{b}", "order", (a, b), f"[{a}] sorted by {b}; None if sorted already")
        self.add(f"{a}_before_{b}", "members", (a, b), f"[{b} + 1] the number of {a} elements before each {b}")

    def is_broadcast(self, node: Pull) -> bool:
        """Whether a token reads its own segment, which needs no gather."""
        if node.source not in self.program.leaves:
            return False
        return all(s.segments == node.target for s in self.plan.sweeps for p in s.passes if node in p.values)


def result_of(plan: Plan, output: Key) -> Key:
    """The result in the shape of the batch that contains an output over tokens."""
    return next(k for k, parts in plan.program.results().items() if output in parts.values())


def fill_of(plan: Plan) -> float:
    """The value of masked places in a program's results."""
    return 1.0 if Key("gated_ratio") in plan.program.results() else 0.0


@dataclass(frozen=True)
class Caller:
    """The declarations that a generated signature needs.

    - `over_rows`: strata that rows lie over. Their labels are per row.
    - `in_rows`: strata whose elements have tokens of one row each. Labels of these and of all others are per token.
    - `defaults`: the default of each parameter and channel; None without one. `ranges`: each parameter's, in words.
    - `attributes`: the stratum of each attribute.
    - `adds_up_tokens`: whether rewards are per token alone, because the formula of advantages adds them up.
    """

    name: str
    rows: str
    over_rows: frozenset[str]
    in_rows: frozenset[str]
    defaults: Mapping[tuple[str, ...], float | None]
    ranges: Mapping[str, str]
    attributes: Mapping[str, str]
    adds_up_tokens: bool


def caller(hierarchy: Hierarchy) -> Caller:
    """What the caller of a hierarchy's generated functions passes."""
    shape = whole_batch(hierarchy)
    finer = (s for s in shape.finer(hierarchy.rows) if s not in hierarchy.leaves)
    defaults: dict[tuple[str, ...], float | None] = {}
    for name, parameter in hierarchy.parameters.items():
        default = parameter.default
        for channel in ("", "+", "-"):
            value = default.get(channel) if isinstance(default, Mapping) else default
            defaults[name, channel] = None if value is None else float(value)
    return Caller(
        hierarchy.name,
        hierarchy.rows.name,
        frozenset(s.name for s in shape.coarser(hierarchy.rows) if s.name != BATCH),
        frozenset(s.name for s in finer),
        defaults,
        {name: parameter.range for name, parameter in hierarchy.parameters.items()},
        {name: attribute.on.name for name, attribute in hierarchy.attributes.items()},
        adds_up_tokens(hierarchy),
    )
