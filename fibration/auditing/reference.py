"""A declared loss on the batches of an audit, for many parameters at once."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fibration.auditing.batch import Batch, Floats
from fibration.auditing.function import Found, Function
from fibration.auditing.joined import LABELLED, Joined, Layout
from fibration.compiler.adjoint import adjoint, drops_tokens
from fibration.compiler.advantages import advantages
from fibration.compiler.interpret import interpret
from fibration.compiler.ir import BATCH, Const, Input, Matrix, Scan
from fibration.compiler.keys import Key
from fibration.compiler.lower import from_log_probs, from_log_ratios, lower
from fibration.compiler.program import Program
from fibration.errors import BatchError
from fibration.language.hierarchy import Hierarchy

ARGUMENT_OF = {"reference": "ref_log_probs", "rollout": "rollout_log_probs"}  # of a policy
COPIES = 1 << 15  # tokens of all copies of the batches that are computed together


class Lack(NamedTuple):
    """What a loss reads and a function is not given. `argument`: which would give it; '' if no audit passes it."""

    what: str
    argument: str = ""


def lacks(h: Hierarchy, function: Function) -> Lack | None:
    roles = function.roles
    for policy in sorted(set(h.policies) - {"current", "old"}):
        if (argument := ARGUMENT_OF.get(policy, "")) not in roles:
            return Lack(f"log-probs of the policy '{policy}'", argument)
    if h.advantages is None and function.reads_rewards:
        return Lack("advantages", "advantages")
    if h.advantages is not None and not function.reads_rewards and not h.penalties:
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


@functools.lru_cache(128)
def programs(h: Hierarchy) -> tuple[Program, Program | None]:
    """What computes the objective and its coefficients, and what makes advantages of rewards. No law is asked."""
    base = lower(h)
    (leaf,) = base.leaves
    moving = {Key("coefficients"): tuple(base.token_input(kind, leaf) for kind in ("log_ratio", "log_prob"))}
    both = adjoint(base, {Key("objective"): Const(1.0, BATCH)}, moving, drops_tokens(h))
    wanted = {key: both.outputs[key] for key in (Key("objective"), Key("coefficients"))}
    made = advantages(h).get("advantages")
    if made is not None:
        made = from_log_ratios(replace(made, outputs={Key("advantages"): made.outputs[Key("advantages")]}))
    return from_log_probs(replace(both, outputs=wanted)), made


@dataclass(frozen=True)
class Reference:
    """A hierarchy as a loss. `from_rewards`: its advantages are made of rewards, and not given."""

    hierarchy: Hierarchy
    from_rewards: bool

    @classmethod
    def of(cls, h: Hierarchy, function: Function) -> Reference:
        return cls(h, function.reads_rewards)

    @functools.cached_property
    def lacks_a_number(self) -> bool:
        """Whether a parameter has no default."""
        return any(p.default is None for p in self.hierarchy.parameters.values())

    @functools.cached_property
    def _has_scans(self) -> bool:
        """Whether a discount may differ between parameters: the interpreter takes one for all elements."""
        return any(isinstance(n, Scan) for p in programs(self.hierarchy) if p is not None for n in p.nodes())

    def taken(self, joined: Joined) -> tuple[int, ...]:
        """Which batches have what the loss needs, such as two rows in each group."""
        layout = joined.layout(self.hierarchy, self.from_rewards)
        return tuple(i for i in layout.taken if self._agrees(joined.batches[i]))

    def takes(self, batch: Batch) -> bool:
        return bool(self.taken(Joined((batch,))))

    def _agrees(self, batch: Batch) -> bool:
        """Whether a formula of groups that reads an advantage finds one for all rows of the group."""
        read = {n.over for n in programs(self.hierarchy)[0].inputs if n.kind == "advantage"}
        if not read - {s.name for s in (*self.hierarchy.leaves, self.hierarchy.rows)} or self.from_rewards:
            return True
        groups: dict[int, float] = {}
        return all(groups.setdefault(r.group, r.advantage) == r.advantage for r in batch.rows)

    def accepts(self, parameters: Mapping[str, Any]) -> bool:
        """Whether every parameter has a number within its bounds."""
        for p in self.hierarchy.parameters.values():
            given = parameters.get(p.name, p.default)
            numbers = list(given.values()) if isinstance(given, Mapping) else [given]
            if any(v is None or not np.isfinite(v) for v in numbers) or p.is_outside(np.array(numbers, float)).any():
                return False
        return True

    def evaluate(self, batch: Batch, parameters: Mapping[str, Any] = MappingProxyType({})) -> Found | None:
        """Its loss and coefficients; None if it does not take the batch or the parameters."""
        joined = Joined((batch,))
        if not self.accepts(parameters) or not self.taken(joined):
            return None
        coefficients, values = self.evaluate_each(joined, [parameters])
        return Found(float(values[0, 0]), coefficients[0], np.zeros(0))

    def evaluate_each(self, joined: Joined, parameters: Sequence[Mapping[str, Any]]) -> tuple[Floats, Floats]:
        """Coefficients `[parameters, tokens]` and losses `[parameters, batches]` of batches that it takes all.

        They are NaN for parameters out of bounds.
        """
        chunk = 1 if self._has_scans else max(1, COPIES // max(int(joined.starts[-1]), 1))
        found = [self._chunk(joined, parameters[i : i + chunk]) for i in range(0, len(parameters), chunk)]
        return np.concatenate([c for c, _ in found]), np.concatenate([v for _, v in found])

    def _chunk(self, joined: Joined, parameters: Sequence[Mapping[str, Any]]) -> tuple[Floats, Floats]:
        fine = np.array([self.accepts(p) for p in parameters])
        coefficients = np.full((len(parameters), joined.starts[-1]), np.nan)
        values = np.full((len(parameters), len(joined.batches)), np.nan)
        accepted = [p for p, good in zip(parameters, fine, strict=True) if good]
        if accepted:
            outputs = self._run(joined, accepted)
            coefficients[fine] = outputs[Key("coefficients")].reshape(len(accepted), -1)
            values[fine] = -outputs[Key("objective")].reshape(len(accepted), -1)
        return coefficients, values

    def _run(self, joined: Joined, parameters: Sequence[Mapping[str, Any]]) -> dict[Key, Floats]:
        objective, made = programs(self.hierarchy)
        layout, copies = joined.layout(self.hierarchy, self.from_rewards), len(parameters)
        call = _Call(self.hierarchy, joined, layout, parameters)
        per_row = np.tile(joined.given("reward" if self.from_rewards else "advantage"), copies)
        leaf, rows = self.hierarchy.leaves[0].name, self.hierarchy.rows.name
        size, row = layout.size[rows], layout.parent(leaf, rows) if leaf != rows else np.arange(layout.size[rows])
        per_token = per_row.reshape(copies, size)[:, row].ravel()
        if self.from_rewards:
            assert made is not None
            per_token = interpret(made, call.inputs(made, per_token), layout.sizes(made, copies))[Key("advantages")]
        return interpret(objective, call.inputs(objective, per_token), layout.sizes(objective, copies))


@dataclass(frozen=True)
class _Call:
    hierarchy: Hierarchy
    joined: Joined
    layout: Layout
    parameters: Sequence[Mapping[str, Any]]

    def inputs(self, program: Program, given: Floats) -> dict[Input | Matrix, Any]:
        """`given`: the advantage, or the reward, of every token of every copy."""
        return {node: self._input(node, program, given) for node in program.inputs}

    def _input(self, node: Input, program: Program, given: Floats) -> Floats:
        copies, size = len(self.parameters), self.layout.size[node.over]
        if node.kind in ("advantage", "reward"):
            return self._at(node.over, program.leaves[0], given)
        if node.kind == "parameter":
            name, channel = node.key
            return np.repeat([self._number(p, name, channel) for p in self.parameters], size)
        if node.kind == "count":
            return np.tile(self.layout.count(*node.key), copies)
        argument = {"log_prob": "log_probs", "old_log_prob": "old_log_probs"}.get(node.kind)
        if argument is None:
            if node.kind != "policy_log_prob":
                raise BatchError(f"'{self.hierarchy.name}' reads {node.word}, which no batch of an audit has")
            argument = ARGUMENT_OF[node.key[0]]
        return np.tile(self.joined.log_probs(argument), copies)

    def _number(self, parameters: Mapping[str, Any], name: str, channel: str) -> float:
        value = parameters.get(name, self.hierarchy.parameters[name].default)
        return float(value[channel] if isinstance(value, Mapping) else value)

    def _at(self, stratum: str, leaf: str, given: Floats) -> Floats:
        if stratum == leaf:
            return given
        copies = len(self.parameters)
        found = np.zeros((copies, self.layout.size[stratum]))
        found[:, self.layout.parent(leaf, stratum)] = given.reshape(copies, -1)
        return found.ravel()
