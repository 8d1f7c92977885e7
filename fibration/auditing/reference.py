"""A declared loss on the batches of an audit: its program on the formulas of their numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fibration.auditing import formula as f
from fibration.auditing.batch import Batch
from fibration.auditing.formula import Untraced, atom, evaluate, number, single
from fibration.auditing.function import Found, Function, numbers_of
from fibration.auditing.record import POINTWISE, objects
from fibration.compiler.adjoint import adjoint, drops_tokens
from fibration.compiler.advantages import advantages
from fibration.compiler.interpret import interpret, value_of
from fibration.compiler.ir import BATCH, Const, Detach, Input, Key, Map, Node, Pull, Push, Quantile, Scan
from fibration.compiler.lower import from_log_probs, from_log_ratios, lower
from fibration.compiler.program import Program
from fibration.errors import BatchError, HierarchyIndexError
from fibration.language.atoms import Parameter, reward
from fibration.language.expressions import Apply, Expression, Number
from fibration.language.hierarchy import Hierarchy
from fibration.language.statistics import Aggregate
from fibration.language.traversal import atoms, rewrite
from fibration.runtime.index.index import Index
from fibration.runtime.index.spread import build_index

# of policies
ARGUMENT_OF = {"reference": "ref_log_probs", "rollout": "rollout_log_probs", "teacher": "teacher_log_probs"}
EPSILON = "epsilon_std"  # what is added to a deviation of rewards
LABELLED = {"prompt_group"}  # strata whose labels are `group_ids`
MEANING: dict[str, Callable[..., Any]] = {
    "const": number, "add": f.add, "sub": f.sub, "mul": f.mul, "div": f.div, "neg": f.neg, "lt": f.less,
    "and": f.both, "or": f.either, "not": f.negate, "select": f.choose, "stop": lambda a: a, "exp": f.exp, "log": f.log,
    **{op: POINTWISE[op] for op in ("le", "expm1", "log1p", "sigmoid", "sqrt", "tanh", "softplus", "atan")},
}  # fmt: skip


class Lack(NamedTuple):
    """What a loss reads and a function is not given. `argument`: which would give it; '' if no audit passes it."""

    what: str
    argument: str = ""


def lacks(h: Hierarchy, function: Function) -> Lack | None:
    roles = function.roles
    if function.moves != "log_probs":
        return Lack("log-probs of the policy", "log_probs")
    for policy in sorted(set(h.policies) - {"current", "old"}):
        if (argument := ARGUMENT_OF.get(policy, "")) not in roles:
            return Lack(f"log-probs of the policy '{policy}'", argument)
    if h.advantages is None and not function.reads_advantages:
        return Lack("advantages", "advantages")
    makes = _makes_advantages(h, function) or (h.penalties and function.reads_advantages)
    if h.advantages is not None and not makes:
        return Lack("rewards", "rewards")  # with advantages in their place it is a loss without its name
    # groups of a loss that declares advantages are those of its rewards
    strata = (*h.strata, *h.groups) if function.reads_rewards or h.advantages is None else h.strata
    for s in sorted(strata, key=lambda s: s.name in LABELLED):  # first what no argument gives
        known = s in h.leaves or s == h.rows or s.name == BATCH
        if not known and not (s.name in LABELLED and "group_ids" in roles):
            return Lack(f"labels of {s.name}", "group_ids" if s.name in LABELLED else "")
    if len(h.leaves) > 1:
        return Lack(f"which tokens are of {h.leaves[0]}")
    if h.attributes:
        return Lack(f"the attribute '{next(iter(h.attributes))}'")
    return None


def _makes_advantages(h: Hierarchy, function: Function) -> bool:
    """Whether advantages are made: of rewards that the function reads; or of log-probs alone, and it is given none."""
    of_log_probs = h.advantages is not None and reward not in atoms(h.advantages)
    return function.reads_rewards or (of_log_probs and not function.reads_advantages)


def _with_epsilon(h: Hierarchy) -> Hierarchy:
    """What advantages add to a standard deviation, as a parameter: trainers add 1e-4, 1e-6 or 1e-8."""

    def of(e: Expression) -> Expression:
        if isinstance(e, Apply) and e.operator == "+" and isinstance(added := e.arguments[1], Number):
            spread = e.arguments[0]
            if isinstance(spread, Aggregate) and spread.kind == "deviation":
                return spread + Parameter(EPSILON, default=float(added.value), upper=0.01)
        return e

    if h.advantages is None or EPSILON in h.parameters:
        return h
    return h.replace(advantages=rewrite(h.advantages, of))


@dataclass(frozen=True)
class Reference:
    """A hierarchy as a loss. `from_rewards`: its advantages are made, of rewards or of log-probs, and not given."""

    hierarchy: Hierarchy
    from_rewards: bool
    per_token: bool = False
    _indexes: dict[Any, Index | None] = field(default_factory=dict, compare=False)
    _made: dict[Any, tuple[Any, Any] | None] = field(default_factory=dict, compare=False)  # by rows and groups

    @classmethod
    def of(cls, h: Hierarchy, function: Function) -> Reference:
        return _known(h, _makes_advantages(h, function), function.per_token)

    @property
    def lacks_a_number(self) -> bool:
        """Whether a parameter has no default."""
        return any(p.default is None for p in self.hierarchy.parameters.values())

    @cached_property
    def programs(self) -> tuple[Program, Program | None]:
        """What computes the objective and its coefficients, and what makes advantages of rewards. No law is asked."""
        h = self.hierarchy
        base = lower(h)
        (leaf,) = base.leaves
        moving = {Key("coefficients"): tuple(base.token_input(kind, leaf) for kind in ("log_ratio", "log_prob"))}
        both = adjoint(base, {Key("objective"): Const(1.0, BATCH)}, moving, drops_tokens(h))
        wanted = {key: both.outputs[key] for key in (Key("objective"), Key("coefficients"))}
        made = advantages(h).get("advantages")
        if made is not None:
            made = from_log_ratios(replace(made, outputs={Key("advantages"): made.outputs[Key("advantages")]}))
        return from_log_probs(replace(both, outputs=wanted)), made

    def _index(self, batch: Batch) -> Index | None:
        h, groups = self.hierarchy, tuple(r.group for r in batch.rows)
        if (key := (batch.lengths, groups)) in self._indexes:
            return self._indexes[key]
        labels: dict[str, Any] = {s.name: list(groups) for s in (*h.strata, *h.groups) if s.name in LABELLED}
        found = None
        with suppress(HierarchyIndexError):  # such as of a group of one row
            found = build_index(h, labels, offsets=np.cumsum([0, *batch.lengths])) if batch.tokens else None
        refused = found is None or (self.from_rewards and found.refuses_rewards is not None)
        self._indexes[key] = None if refused else found
        return self._indexes[key]

    def formulas(self, batch: Batch) -> tuple[Any, Any] | None:
        """The coefficients of tokens, and the loss; parameters are variables. None if the loss takes no such batch."""
        key = batch.lengths, tuple(r.group for r in batch.rows)
        if key not in self._made:
            self._made[key] = self._outputs(batch, _on_formulas)
        return self._made[key]

    def _outputs(self, batch: Batch, run: Callable[..., Any]) -> tuple[list[Any], Any] | None:
        """The coefficients and the loss, as `run` makes them of a program, its inputs and an index of the batch."""
        if (index := self._index(batch)) is None:
            return None
        objective, made = self.programs
        role = "rewards" if self.from_rewards else "advantages"
        given = [single(atom("var", role, *(p if self.per_token else p[:1]))) for p in batch.places]
        if self.from_rewards:
            assert made is not None
            given = run(made, _inputs(made, index, batch, given), index)[Key("advantages")]
        found = run(objective, _inputs(objective, index, batch, given), index)
        return list(found[Key("coefficients")]), f.neg(found[Key("objective")][0])

    def accepts(self, parameters: Mapping[str, Any]) -> bool:
        """Whether every parameter has a number within its bounds."""
        for p in self.hierarchy.parameters.values():
            given = parameters.get(p.name, p.default)
            numbers = list(given.values()) if isinstance(given, Mapping) else [given]
            if any(v is None or not np.isfinite(v) for v in numbers) or p.is_outside(np.array(numbers, float)).any():
                return False
        return True

    def with_numbers(self, batch: Batch, parameters: Mapping[str, Any]) -> list[Any]:
        """The coefficients with numbers for parameters. Raises Untraced if the loss does not take the batch."""
        if (made := self.formulas(batch)) is None:
            raise Untraced(f"'{self.hierarchy.name}' does not take this batch")
        return f.substituted(made[0], {v: number(x) for v, x in self.values(parameters).items()})

    def evaluate(self, batch: Batch, parameters: Mapping[str, Any] = MappingProxyType({})) -> Found | None:
        """Its loss and coefficients; None if it does not take the batch or the parameters."""
        if not self.accepts(parameters):
            return None
        at = {**numbers_of(batch, self.per_token), **self.values(parameters)}

        def on_numbers(program: Program, inputs: Mapping[Any, Any], index: Index) -> dict[Key, Any]:
            given: dict[Any, Any] = {node: evaluate(v, at) for node, v in inputs.items()}
            return interpret(program, given, index.sizes(program.edges))

        made = self._outputs(batch, on_numbers)
        return None if made is None else Found(float(made[1]), np.array(made[0], float), np.zeros(0))

    def values(self, parameters: Mapping[str, Any]) -> dict[Any, Any]:
        """Numbers of the variables of its parameters."""
        found = {}
        for p in self.hierarchy.parameters.values():
            given = parameters.get(p.name, p.default)
            for channel in ("+", "-") if p.per_channel else ("",):
                value = given[channel] if isinstance(given, Mapping) else given
                found[atom("var", "parameter", p.name, channel)] = value
        return found


@functools.lru_cache(256)
def _known(h: Hierarchy, from_rewards: bool, per_token: bool) -> Reference:
    return Reference(_with_epsilon(h), from_rewards, per_token)


def _inputs(program: Program, index: Index, batch: Batch, given: Sequence[Any]) -> dict[Input, Any]:
    """What a program reads. `given`: the advantages, or the rewards, of tokens; all others are variables."""

    def of(node: Any) -> Any:
        size = index.size[node.over]
        if node.kind in ("advantage", "reward"):
            leaf = program.leaves[0]
            parent = range(size) if node.over == leaf else index.parent(leaf, node.over).tolist()
            return objects([v for _, v in sorted(dict(zip(parent, given, strict=True)).items())])
        if node.kind == "parameter":
            return objects([single(atom("var", "parameter", *node.key))] * size)
        if node.kind == "count":
            return objects([number(float(n)) for n in np.broadcast_to(index.count(*node.key).numpy(), (size,))])
        roles = {"log_prob": "log_probs", "old_log_prob": "old_log_probs"}
        role = ARGUMENT_OF[node.key[0]] if node.kind == "policy_log_prob" else roles.get(node.kind)
        if role is None:
            raise BatchError(f"the loss reads {node.word}, which no batch of an audit has")
        return objects([single(atom("var", role, *p)) for p in batch.places])

    return {node: of(node) for node in program.inputs}


def _on_formulas(program: Program, inputs: Mapping[Any, Any], index: Index) -> dict[Key, Any]:
    """A program of the IR on vectors of formulas."""
    values: dict[Node, Any] = dict(inputs)
    for node in program.nodes():
        if node not in values:
            values[node] = _value(node, values, index)
    return {k: values[v] for k, v in program.outputs.items()}


def _value(node: Node, values: dict[Node, Any], index: Index) -> Any:
    if isinstance(node, Const):
        return objects([number(node.value)] * index.size[node.over])
    if isinstance(node, Map):
        return objects(
            value_of(node.body, each.__getitem__, MEANING)
            for each in zip(*(values[v] for v in node.inputs), strict=True)
        )
    if isinstance(node, Detach):
        return values[node.operand]
    if isinstance(node, Pull):
        return values[node.operand][index.parent(node.source, node.target).numpy()]
    if not isinstance(node, (Push, Quantile, Scan)):
        raise BatchError(f"{type(node).__name__} has no formula here")
    source, x = (node.source, node.operands[0]) if isinstance(node, Push) else (node.sources[0], node.values[0])
    parent, x = index.parent(source, node.target).numpy(), values[x]
    over = [list(x[parent == b]) for b in range(index.size[node.target])]
    if isinstance(node, Push):
        return objects([f.add(*v) if node.reduce == "sum" else functools.reduce(f.maximum, v) for v in over])
    if isinstance(node, Quantile):
        return objects([f.apply("quantile", level, *v) for level, v in zip(values[node.level], over, strict=True)])
    found, before = np.empty(len(x), object), dict[int, Any]()
    order = np.argsort(index.places(source).numpy())
    for i in order if node.forward else order[::-1]:
        found[i] = before.get(parent[i], 0)
        before[parent[i]] = f.mul(values[node.discount][0], f.add(found[i], x[i]))
    return found
