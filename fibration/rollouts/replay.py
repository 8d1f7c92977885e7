"""Replays a recorded batch: builds its index, runs the operator, and measures its error against the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fibration.compiler.interpret import interpret
from fibration.compiler.ir import Input, Key, Matrix, part
from fibration.errors import RolloutsError, listed
from fibration.language.atoms import BATCH, Attribute, advantage, pull
from fibration.language.declared import OLD
from fibration.language.hierarchy import Hierarchy, adds_up_tokens
from fibration.language.statistics import atoms_within
from fibration.rollouts.file import Rollouts
from fibration.rollouts.labels import NONE
from fibration.runtime.index.index import Index
from fibration.runtime.metrics import Coefficients, Levels
from fibration.runtime.operator import Operator
from fibration.runtime.weights import Weights, weights_of

MOST = 32  # parts that tables and pictures show; metrics have as many


@dataclass(frozen=True)
class Parts:
    """The parts of a batch in tables and pictures: every token belongs to one named part, such as a domain."""

    stratum: str  # "" if the rollouts have no labels for parts
    names: tuple[str, ...]
    of_token: NDArray[np.int64]  # [N] positions in names; all 0 if there are no names


def parts(rollouts: Rollouts, hierarchy: Hierarchy, by: str | None = None) -> Parts:
    """Returns the parts by the labels of a stratum. The first that the rollouts have, of:

    - `by` (RolloutsError if the rollouts lack it);
    - `domain`;
    - the finest stratum of the hierarchy with at most `MOST` names;
    - any labels with at most `MOST` names.
    """
    known = rollouts.labels
    if by is not None and by not in known:
        required = f"one of {', '.join(known)}" if known else "labels, to tell parts of the batch apart"
        _refuse(f"have no labels for '{by}'", required, "", f"{by}=labels", ", one per row or per token")
    few = [name for name, given in known.items() if len(given.names) <= MOST]
    own = [s.name for s in reversed(hierarchy.order) if s.name in few]
    stratum = by or next((name for name in ("domain", *own, *few) if name in known), "")
    if not stratum or not known[stratum].names:
        return Parts("", (), np.zeros(rollouts.n_tokens, np.int64))
    labels = known[stratum]
    names, of_token = [str(name) for name in labels.names], rollouts.of_tokens(labels.of).astype(np.int64)
    if all(isinstance(name, (int, float)) for name in labels.names):  # sort numbers by value, not by first appearance
        order = np.argsort(np.array(labels.names, float), kind="stable")
        names, place = [names[i] for i in order], np.argsort(order)
        of_token = np.where(of_token == NONE, NONE, place[of_token])
    if len(names) > MOST:
        counts = np.bincount(of_token[of_token != NONE], minlength=len(names))
        rank = np.argsort(np.argsort(-counts, kind="stable"))
        kept = np.flatnonzero(rank < MOST - 1)
        number = np.full(len(names) + 1, NONE)  # the last entry is for tokens without a label
        number[:-1], number[kept] = MOST - 1, np.arange(MOST - 1)
        names, of_token = [*(names[i] for i in kept), f"{len(names) - MOST + 1} others"], number[of_token]
    if (of_token == NONE).any():
        of_token[of_token == NONE] = len(names)
        names.append(f"no {stratum}")
    return Parts(stratum, tuple(names), of_token)


@dataclass(frozen=True)
class Replay:
    """A batch, and everything that an operator computes from it when it is first read: float64, per token `[N]`."""

    op: Operator
    index: Index
    parameters: Mapping[str, Any]
    log_probs: Tensor
    old_log_probs: Tensor
    log_ratio: Tensor
    advantages: Tensor | None  # [n] or [N]
    policies: Mapping[str, Tensor]  # log-probs of the policies that the hierarchy reads, without current and old
    metrics: bool | Sequence[str] = True  # of `result`

    @property
    def frozen(self) -> dict[str, Tensor]:
        """`policies`, and the old policy if a formula names it."""
        return {**self.policies, **({OLD: self.old_log_probs} if OLD in self.op.hierarchy.policies else {})}

    @property
    def _read(self) -> dict[str, Any]:
        return {"parameters": self.parameters, "advantages": self.advantages, "policies": self.frozen}

    @cached_property
    def ratio(self) -> Tensor:
        """Gated ratios."""
        return self.op.gate(self.log_ratio, self.index, **self._read)

    @cached_property
    def levels(self) -> Levels:
        return self.op.levels(self.log_ratio, self.index, **self._read)

    @cached_property
    def result(self) -> Coefficients:
        """Without advantages, its objective and values are those of advantages of 0."""
        now, old, rest = self.log_probs, self.old_log_probs, (self._or_zeros, self.index, self.parameters)
        return self.op.coefficients(now, old, *rest, policies=self.policies, metrics=self.metrics)

    @cached_property
    def weights(self) -> Weights:
        """The weight of every unmasked token's term, and whether the token is kept."""
        return weights_of(self.op.hierarchy, self.index, self.inputs("evaluate"))

    def inputs(self, program: str) -> dict[Input | Matrix, NDArray[np.float64]]:
        """Returns the operator's inputs of one of its programs, for the interpreter."""
        pair, given = (self.log_probs, self.old_log_probs), (self._or_zeros, self.parameters, program)
        values = self.op.inputs(self.index, self.log_ratio, *given, pair, self.policies)
        return {k: v.cpu().numpy() for k, v in values.items()}

    @property
    def _or_zeros(self) -> Tensor:
        return self.log_ratio.new_zeros(self.index.n_rows) if self.advantages is None else self.advantages


@dataclass(frozen=True, kw_only=True)
class Gated(Replay):
    """A recorded batch under an operator. A hierarchy with a formula for advantages makes them of the rewards."""

    rollouts: Rollouts
    parts: Parts


def _double(column: NDArray[Any]) -> Tensor:
    return torch.from_numpy(column).double()


def _refuse(what: str, required: str, found: str, give: str, more: str = "") -> NoReturn:
    """Raises RolloutsError for rollouts that lack something."""
    remedy = f"give them: Rollouts.from_batch({give if give.startswith('log_probs') else f'..., {give}'}){more}"
    raise RolloutsError(f"the rollouts {what}", required=required, found=found, remedy=remedy)


def passed_policies(hierarchy: Hierarchy, rollouts: Rollouts) -> dict[str, Tensor]:
    """Returns the log-probs of the policies that a hierarchy reads, without current and old, in float64.

    Raises RolloutsError if the rollouts lack a policy.
    """
    read = [name for name, policy in hierarchy.policies.items() if policy.is_passed]
    for name in (n for n in read if n not in rollouts.policies):
        what = f"have no log-probs of the policy '{name}', which '{hierarchy.name}' reads"
        give = f"policies={{'{name}': log_probs}}"
        required = f"{give}, one for each of the {rollouts.n_tokens} tokens"
        _refuse(what, required, f"those of {listed(('current', 'old', *rollouts.policies))}", give)
    return {name: _double(rollouts.policies[name]) for name in read}


def build_index(op: Operator, rollouts: Rollouts, device: torch.device | str | None = None) -> Index:
    """Returns the index of recorded rollouts. Labels of strata that the hierarchy lacks are not used.

    Raises RolloutsError if the rollouts lack labels, masks or attributes that the hierarchy needs.
    """
    h, known, each = op.hierarchy, rollouts.labels, ", one per row or per token"
    have = f"labels for {', '.join(known) or 'nothing'}; every segment is one {h.rows}"
    leaves = [s.name for s in h.leaves] if len(h.leaves) > 1 else []
    if len([leaf for leaf in leaves if leaf not in rollouts.masks]) > 1:  # the last leaf has all other tokens
        required = f"masks for {', '.join(leaves)}: every token is an element of one of these leaves"
        found = f"masks for {', '.join(rollouts.masks) or 'none'}; {have}"
        give = "masks={" + ", ".join(f"{leaf!r}: mask" for leaf in leaves) + "}"
        _refuse(f"do not say which tokens of '{h.name}' are which", required, found, give, ", of all but one")
    wanted = [s.name for s in (*h.order, *h.groups) if s not in (*h.leaves, h.rows) and s.name != BATCH]
    for name in (n for n in wanted if n not in known):
        what = f"say nothing about the stratum '{name}' of '{h.name}'"
        _refuse(what, f"labels for {', '.join(wanted)}", have, f"{name}=labels", each)
    for name in (n for n in h.attributes if n not in rollouts.attributes):
        what = f"say nothing about the attribute '{name}' of '{h.name}'"
        found = f"numbers for {', '.join(rollouts.attributes) or 'none'}"
        _refuse(what, f"numbers for {', '.join(h.attributes)}", found, f"attributes={{'{name}': numbers}}", each)
    rows = [h.rows.name] if h.rows not in h.leaves and h.rows.name in known else []
    given: dict[str, Any] = {name: known[name].each for name in (*wanted, *rows)}
    given |= {leaf: rollouts.masks[leaf] for leaf in leaves if leaf in rollouts.masks}
    attributes = {a.name: _attribute(a, rollouts, h) for a in h.attributes.values()}
    return op.index(offsets=rollouts.offsets, attributes=attributes, device=device, **given)


def _attribute(attribute: Attribute, rollouts: Rollouts, h: Hierarchy) -> Any:
    """Returns an attribute's numbers as an index takes them: per token, per row, or by label.

    Raises RolloutsError if the tokens of one element have different numbers.
    """
    column, on = rollouts.attributes[attribute.name], attribute.on
    if on in h.leaves:
        return rollouts.of_tokens(column)
    if on == h.rows and len(column) == rollouts.n_trajectories:
        return column
    values = rollouts.of_tokens(column)
    names: Sequence[Any] = range(rollouts.n_trajectories)
    of = rollouts.rows
    if on != h.rows:
        of, names = rollouts.of_tokens(rollouts.labels[on.name].of), rollouts.labels[on.name].names
    numbers = np.full(len(names), np.nan, values.dtype)
    numbers[of[of != NONE]] = values[of != NONE]
    for k in np.flatnonzero((of != NONE) & (numbers[of] != values))[:1]:
        one = f"{on} {names[of[k]]!r}"
        raise RolloutsError(
            f"the attribute '{attribute.name}' of {one} has two values",
            required=f"one number for all tokens of one {on}",
            found=f"{values[k]:g} and {numbers[of[k]]:g}",
            remedy=f"declare it on {h.leaves[0]}, or give all tokens of {one} the same",
        )
    if on == h.rows:
        return numbers
    return {names[i]: float(numbers[i]) for i in np.unique(of[of != NONE])}  # labels that a token has


def gate(op: Operator, index: Index, rollouts: Rollouts, parameters: Mapping[str, Any], by: str | None = None) -> Gated:
    """Runs the operator on recorded log-probs, in float64, so that rounding is not mistaken for error."""
    h, now, old = op.hierarchy, _double(rollouts.log_probs), _double(rollouts.old_log_probs)
    advantages = None if rollouts.advantages is None else _double(rollouts.advantages)
    given = op, index, parameters, now, old, now - old
    found = Gated(*given, advantages, passed_policies(h, rollouts), rollouts=rollouts, parts=parts(rollouts, h, by))
    if h.advantages is not None:
        made = op.advantages(_rewards(h, rollouts), index, parameters, policies=found.frozen)
        return replace(found, advantages=made)
    if advantages is None:
        _refuse_none(h, rollouts)
    return found


def _rewards(h: Hierarchy, rollouts: Rollouts) -> Tensor:
    """Returns the rewards for the hierarchy's advantages. Raises RolloutsError if the rollouts lack them."""
    of_tokens, one, more = adds_up_tokens(h), "trajectory or per token", ""
    if rollouts.rewards is None or (of_tokens and len(rollouts.rewards) != rollouts.n_tokens):
        what = f"have no rewards, of which '{h.name}' makes advantages"
        if of_tokens:
            what = f"have no rewards of tokens, which '{h.name}' adds up"
            one, more = "token", ", a row's reward at its last token, and 0 elsewhere"
        _refuse(what, f"rewards, one per {one}", f"advantages={h.advantages}", "rewards=rewards", more)
    return _double(rollouts.rewards)


def _refuse_none(h: Hierarchy, rollouts: Rollouts) -> None:
    """Raises RolloutsError if a gate, weight or condition reads advantages, which the rollouts lack."""
    read = [(f"the gate on {s}", [h.gate(s)]) for s in h.order]
    weighed = (h.objective, *(p.objective for p in h.penalties.values() if p.objective is not None))
    read += [("a weight or a condition of the objective", list(o.formulas)) for o in weighed]
    for reader, formulas in read:
        if any(a in (advantage, pull) for f in formulas for a in atoms_within(f)):
            made = "neither advantages nor rewards"
            if rollouts.rewards is not None:
                made = "only rewards, and the hierarchy has no formula for advantages"
            what = f"have no advantages, and {reader} of '{h.name}' reads them"
            give = "log_probs, old_log_probs, advantages, ..."
            _refuse(what, "advantages, one per trajectory or per token", made, give)


def disagreement(gated: Gated) -> dict[str, float]:
    """Returns the errors of the compiled operator against the float64 interpreter of its IR, by name.

    Each error is relative to the size of the compared values. Without advantages, only "ratio" is compared.
    """

    def oracle(program: str) -> dict[Key, NDArray[np.float64]]:
        p = gated.op.programs[program]
        return interpret(p, gated.inputs(program), gated.index.sizes(p.edges))

    truth = {**oracle("gate"), **oracle("objective")}
    leaves = gated.index.leaves
    for word, nothing in (("gated_ratio", 1.0), ("coefficients", 0.0)):
        whole = np.full(gated.index.shape, nothing)
        for leaf in leaves:
            whole[gated.index.positions_of(leaf).numpy()] = truth[part(word, leaf, leaves)]
        truth[Key(word)] = whole
    ratio, expected, objective = (truth[Key(word)] for word in ("gated_ratio", "coefficients", "objective"))
    found = {"ratio": _relative(gated.ratio.numpy() - ratio, ratio.max())}
    if gated.advantages is not None:  # else the coefficients are those of advantages of 0
        # Terms of J may cancel, so its error is relative to the sum of their sizes.
        terms = max(abs(float(objective[0])), float(np.abs(expected).sum()))
        found["coefficients"] = _relative(gated.result.values.numpy() - expected, np.abs(expected).max())
        found["objective"] = _relative(float(gated.result.objective) - objective, terms)
    return found


def _relative(error: Any, size: float) -> float:
    largest = float(np.abs(error).max())
    return largest / size if size else largest
