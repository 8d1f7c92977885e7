"""One call of an operator's program: checks its inputs, runs it, and checks its results where the device allows it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fibration.compiler.arguments import TOKENS, token_tensor
from fibration.compiler.coupling import Advantages, DeadIf
from fibration.compiler.ir import BATCH, Key
from fibration.compiler.program import PER_TOKEN, Program
from fibration.compiler.spread import BEYOND, RANGE
from fibration.errors import BatchError, listed
from fibration.language.atoms import Stratum
from fibration.language.hierarchy import Hierarchy
from fibration.language.outline import is_beyond_rows
from fibration.runtime import devices, inputs
from fibration.runtime.batch import Batch, Executable, Launcher, Outputs, given_of, tensors_of
from fibration.runtime.index.index import Index
from fibration.runtime.index.micro import MicroIndex, of_whole_step
from fibration.runtime.metrics import Collector
from fibration.runtime.parameters import Values, parameter_values
from fibration.runtime.precision import HALF, warn_of_rounding
from fibration.runtime.prepared import NONFINITE, keep
from fibration.runtime.ranks.group import agree, agreed
from fibration.runtime.ranks.shards import Shards
from fibration.runtime.tracing import refuse_graphs, refuse_traces

# What each program's call is named in errors.
CALLS = {
    "evaluate": "op.coefficients with metrics",
    "objective": "op.coefficients with metrics=False",
    "micro": "op.coefficients of a micro-batch",
    "prologue": "op.freeze",
    "gate": "op.gate",
    "gate_adjoint": "the backward of op.gate",
    "levels": "op.levels",
    "advantages": "advantages from rewards",
    "advantages_of_rows": "advantages from rewards",
}


class Given(NamedTuple):
    """The arguments that calls share, as the caller gave them."""

    index: Any
    advantages: Any = None
    parameters: Any = None
    policies: Any = None
    rewards: Any = None
    graph: bool = False  # whether gradients are being recorded


def ranks_of(index: object) -> Shards | None:
    return index.ranks if isinstance(index, Index) else None


@dataclass(frozen=True)
class Backend:
    """The functions of one backend, ready to call."""

    name: str
    run: Executable


class Executor:
    """The programs of an operator, on the backend for the device of the index."""

    def __init__(
        self,
        hierarchy: Hierarchy,
        programs: Mapping[str, Program],
        backend: Backend,
        on_cpu: Callable[[], Backend] | None = None,
    ) -> None:
        """`on_cpu` makes the backend for CPU batches; None where `backend` runs on the CPU."""
        self.hierarchy, self.programs = hierarchy, programs
        self.collector = Collector(hierarchy, programs)
        self._backend, self._on_cpu = backend, on_cpu
        self._cpu: Backend | None = None
        self._knows_rounding = False  # whether half-precision log-probs were checked
        self._knows_sign = False  # whether the sign of log-probs was checked

    def on(self, device: torch.device) -> Backend:
        """The backend for this device. The CPU backend loads on first use."""
        if self._on_cpu is None or device.type != "cpu":
            return self._backend
        if self._cpu is None:
            self._cpu = self._on_cpu()
        return self._cpu

    def freeze(self, old_log_probs: Tensor, given: Given) -> None:
        """See `Operator.freeze`."""
        program, ranks = self.programs.get("prologue"), ranks_of(given.index)
        if program is None:
            inputs.check_tokens(self.hierarchy, given.index)
            return
        group = None if ranks is None else ranks.group
        with agreed(group, CALLS["prologue"]) as said:
            tokens = self._tokens("prologue", {"old_log_probs": old_log_probs}, given)
            index = self._whole_step(given.index, CALLS["prologue"], **tokens)
            advantages, parameters = given.advantages, given.parameters
            batch = inputs.make_batch(program, program, index, tokens, advantages, parameters, torch.float64, 0.0)
            self._check_signs(batch.tokens, index, advantages)
            self._say(said, "prologue", program, index, parameters)
        outputs = self._evaluate("prologue", batch, ranks)
        sums = {str(key): outputs[key] for key in program.outputs}
        if devices.can_sync(index.device) and not all(bool(torch.isfinite(v).all()) for v in sums.values()):
            with agreed(group, f"what is not finite in {CALLS['prologue']}"):
                inputs.refuse_given(batch, index, "advantage")
            raise BatchError(
                f"a sum over {' and '.join(index.coupling.frozen)} of '{self.hierarchy.name}' is not finite",
                required="finite sums of what is known before the update",
                remedy="compare with backend='torch', which computes in float64",
            )
        index.keep(FROZEN_SUMS, Frozen(sums, parameter_values(self.hierarchy, program, index, parameters or {})))

    def live(self, advantages: Tensor, index: Index | None, dead_if: DeadIf) -> Tensor:
        """See `Operator.live`."""
        ranks = ranks_of(index)
        with agreed(None if ranks is None else ranks.group, "op.live"):
            index = self._whole_step(index, "live rows")
            given, per_row = inputs.checked(self.hierarchy, index, "advantage", advantages)
        return live_rows(self.hierarchy, dead_if, index, given, per_row)

    def program(self, index: object, metrics: object, rewards: object) -> str:
        """The program of a call. Metrics by name and rewards of a micro-batch need a whole step: BatchError."""
        if not isinstance(index, MicroIndex):
            return self.collector.program(metrics)
        if not isinstance(metrics, bool):
            raise of_whole_step(self.hierarchy, "metrics")
        if rewards is not None:
            raise of_whole_step(self.hierarchy, "rewards")
        return "micro" if "micro" in self.programs else "objective"

    @torch.no_grad()
    def advantages(self, program: str, tokens: Mapping[str, Tensor], given: Given) -> Tensor | None:
        """The advantages that a call of `program` reads, made from rewards; None where it reads none."""
        ranks, rewards = ranks_of(given.index), given.rewards
        group = None if ranks is None or devices.is_recording() else ranks.group
        with agreed(group, CALLS["advantages"]):
            refuse_traces()
            if given.graph:
                refuse_graphs(program, given.parameters, given.policies, rewards=rewards, **tokens)
            inputs.refuse_both(self.hierarchy, given.advantages)
            index = self._whole_step(given.index, "rewards")
            if index.refuses_rewards is not None:
                raise index.refuses_rewards.with_traceback(None)
        if program != "advantages" and not any(i.kind == "advantage" for i in self.programs[program].inputs):
            return None
        per_row = inputs.is_per_row(index, rewards, group)
        by_row = per_row and "advantages_of_rows" in self.programs
        made = "advantages_of_rows" if by_row else "advantages"
        with agreed(group, CALLS[made]) as said:
            read = self.programs[made]
            called = {token_tensor(i).called for i in read.inputs if i.kind in TOKENS}
            mine = {name: t for name, t in tokens.items() if name in called}
            mine |= inputs.policy_tensors(self.hierarchy, read, tokens, given.policies)
            inputs.check_tokens(self.hierarchy, index, **{**tokens, **mine})
            batch = inputs.make_batch(read, read, index, mine, rewards, given.parameters, torch.float64, 0.0)
            self._check_signs({**tokens, **mine}, index, rewards, "rewards")
            if per_row and not index.rows_are_tokens():
                inputs.refuse_sums(self.hierarchy, index)
            rows = inputs.row_values(batch, index, "reward") if ranks is not None and ranks.cut and not by_row else None
            said["what the call is for"] = CALLS[program]
            self._say(said, made, read, index, given.parameters)
        if ranks is not None and rows is not None:
            batch = inputs.check_rows_agree(batch, index, ranks, "reward", rows)
        outputs = self._evaluate(made, batch, ranks)
        found = outputs[Key("advantages")]
        if devices.can_sync(index.device):
            if outputs.number(NONFINITE) > 0:
                with agreed(group, f"what is not finite in {CALLS[made]}"):
                    inputs.refuse_advantages(batch, index, outputs, by_row)
            self._refuse_beyond(made, outputs)
        return inputs.of_batch_rows(index, found) if by_row else found

    def call(
        self,
        program: str,
        tokens: Mapping[str, Tensor],
        given: Given,
        dtype: torch.dtype,
        fill: float = 0.0,
        metrics: object = False,
        kept: Hashable | None = None,
    ) -> tuple[Outputs, Batch]:
        """The outputs of a program, and its batch. `metrics`: the metrics to compute; `kept`: the key under which the
        index keeps this call for the next one.
        """
        if given.rewards is not None:
            given = given._replace(advantages=self.advantages(program, tokens, given))
        advantages, parameters, ranks = given.advantages, given.parameters, ranks_of(given.index)
        group = None if ranks is None or devices.is_recording() else ranks.group
        with agreed(group, CALLS[program]) as said:
            tokens, asked = self._tokens(program, tokens, given), self.collector.asked(metrics)
            read, declared = self.programs[program], self.programs["evaluate"]
            frozen: Mapping[str, Tensor] = {}
            if program not in ("micro", "objective"):
                index = self._whole_step(given.index, CALLS[program], **tokens)
            else:
                index = inputs.check_tokens(self.hierarchy, given.index, **tokens)
            if program == "micro" and isinstance(index, MicroIndex):
                frozen = frozen_sums(self.hierarchy, self.programs["prologue"], index, parameters)
            batch = inputs.make_batch(read, declared, index, tokens, advantages, parameters, dtype, fill, frozen)
            self._check_signs(batch.tokens, index, advantages)
            chosen = self.on(index.device).run.choose(program, batch)
            rows = None
            if ranks is not None:
                has_some = ranks.cut and batch.advantage is not None
                rows = inputs.row_values(batch, index, "advantage") if has_some else None
                said["the dtype of results"] = str(dtype)
                self._say(said, chosen, declared, index, parameters)
                said["the metrics asked for"] = ", ".join(sorted(asked)) or "none"
        if not self._knows_rounding and "log_probs" in tokens:
            now, old = tokens["log_probs"], tokens["old_log_probs"]
            if now.dtype in HALF or old.dtype in HALF:
                self._knows_rounding = True
                warn_of_rounding(index, now, old, parameter_values(self.hierarchy, declared, index, parameters or {}))
        if ranks is not None and rows is not None:
            batch = inputs.check_rows_agree(batch, index, ranks, "advantage", rows)
        if program == "micro" or devices.is_recording() or inputs.has_two_readings(batch, index):
            kept = None  # frozen sums may change; a graph keeps its own values; these advantages are compared each time
        store = None if kept is None else partial(keep, index, kept, asked, program)
        outputs = self._evaluate(program, batch, ranks, chosen, store)
        if not devices.can_sync(index.device):  # reading a value would stall the device; results are NaN instead
            return outputs, batch
        if outputs.number(NONFINITE) > 0:
            with agreed(group, f"what is not finite in {CALLS[program]}"):
                inputs.refuse_nonfinite(batch, index)
                inputs.refuse_terms(self.hierarchy, outputs, index)
            raise BatchError(
                f"{CALLS[program]} of '{self.hierarchy.name}' is not finite, though all log-probs and advantages are",
                required="finite values",
                remedy="compare with backend='torch', which computes in float64",
            )
        self._refuse_beyond(program, outputs)
        return outputs, batch

    def _tokens(self, program: str, tokens: Mapping[str, Tensor], given: Given) -> dict[str, Tensor]:
        """The token tensors of a call, further policies included."""
        refuse_traces()
        if given.graph:
            refuse_graphs(program, given.parameters, given.policies, advantages=given.advantages, **tokens)
        return {**tokens, **inputs.policy_tensors(self.hierarchy, self.programs[program], tokens, given.policies)}

    def _whole_step(self, index: Index | None, what: str, **tokens: Tensor) -> Index:
        """The checked index of a call that needs a whole step."""
        if isinstance(index, MicroIndex):
            inputs.check_tokens(self.hierarchy, index)
            raise of_whole_step(self.hierarchy, what)
        return inputs.check_tokens(self.hierarchy, index, **tokens)

    def _say(self, said: dict[str, str], chosen: str, read: Program, index: Index, parameters: Any) -> None:
        """What must be equal on all ranks of a call: the backend, parameters, and elements coarser than tokens."""
        if index.ranks is None:
            return
        backend = self.on(index.device)
        backend.run.collectives(chosen, index.ranks.cut)  # compiles them, and may fail
        sizes = ", ".join(f"{n} {s}" for s, n in index.size.items() if s not in (*index.leaves, BATCH))
        said |= {"the backend": backend.name, "the index": f"{sizes} (structure {index.ranks.structure})"}
        for node, numbers in parameter_values(self.hierarchy, read, index, parameters or {}).items():
            name, channel = node.key
            of = f" of channel '{channel}'" * bool(channel)
            said[f"parameter '{name}'{of}"] = ", ".join(map(repr, numbers.tolist()))

    def _refuse_beyond(self, program: str, outputs: Outputs) -> None:
        if BEYOND in outputs and outputs.number(BEYOND) > 0:
            raise BatchError(
                f"{CALLS[program]} sums tokens of several ranks, and one of their terms is beyond {RANGE:g}",
                required="terms within the range of exact sums, which do not depend on the rank of a token",
                remedy="mask tokens with such log-probs or advantages, or give every rank whole rows",
            )

    def _check_signs(
        self, tokens: Mapping[str, Tensor], index: Index, given: Tensor | None, word: str = "advantages"
    ) -> None:
        """Refuse arguments that are no log-probs. On a GPU only an operator's first call waits for the numbers."""
        looks = devices.can_sync(index.device)
        if looks or not (self._knows_sign or devices.is_recording()):
            inputs.refuse_exchanged(tokens, index, word, given)
        if "log_probs" in tokens and not self._knows_sign:
            if looks:
                inputs.refuse_negated(tokens, index)
            self._knows_sign = True

    def gate_adjoint(self, batch: Batch, ranks: Shards | None) -> Tensor:
        if ranks is not None and not devices.is_recording():
            stages = self.on(batch.index.device).run.collectives("gate_adjoint", ranks.cut)
            if stages:
                agree(ranks.group, CALLS["gate_adjoint"], {})
        return self._evaluate("gate_adjoint", batch, ranks)[Key("log_ratio_gradient")]

    def _evaluate(
        self,
        program: str,
        batch: Batch,
        ranks: Shards | None,
        chosen: str = "",
        store: Callable[[Batch, Launcher], None] | None = None,
    ) -> Outputs:
        """The outputs of a program, or of the one that was `chosen` for it. Without ranks, `store` takes what runs it
        again.
        """
        device, chosen = batch.index.device, chosen or program
        run = self.on(device).run
        if ranks is None:
            launch = run.prepare(chosen, batch)
            if store is not None:
                store(batch, launch)
            return launch(tensors_of(batch), given_of(batch))
        outputs = ranks.run(CALLS[program], run.collectives(chosen, ranks.cut), lambda: run(chosen, batch), device)
        if BEYOND in outputs:  # beyond the range of exact sums, results depend on which rank has which tokens
            for key in outputs.keys() & {Key("objective"), *map(Key, PER_TOKEN)}:
                outputs[key] = torch.where(outputs[BEYOND] > 0, torch.nan, outputs[key])
        return outputs


# ---------------------------------------------------------------- sums that micro-batches read of a whole step

FROZEN_SUMS = "frozen sums"  # their key in an index


@dataclass(frozen=True)
class Frozen:
    """`sums`: float64 per element of the whole step, by the name of the prologue's output. `parameters`: as it read."""

    sums: Mapping[str, Tensor]
    parameters: Values


def frozen_sums(h: Hierarchy, prologue: Program, index: MicroIndex, given: Any) -> Mapping[str, Tensor]:
    """What `op.freeze` kept for the step, at the elements of a micro-batch: float64 [elements].

    Raises BatchError without it, and if parameters differ.
    """
    frozen: Frozen | None = index.whole.told(FROZEN_SUMS)
    over = listed(list(index.coupling.frozen))
    if frozen is None:
        raise BatchError(
            f"a micro-batch of '{h.name}' reads sums over {over} of the whole step, and they are not computed",
            required="op.freeze(...) once per step, before its micro-batches",
            remedy="op.freeze(old_log_probs, advantages, index, policies=...) with the tensors of all rows",
        )
    now = parameter_values(h, prologue, index.whole, {} if given is None else given)
    for node, numbers in frozen.parameters.items():
        if not np.array_equal(numbers, now[node]):
            raise BatchError(
                f"parameter '{node.key[0]}' of '{h.name}' is {now[node].tolist()} in a micro-batch, and was "
                f"{numbers.tolist()} in op.freeze(...)",
                required="the same parameters in a whole step",
                remedy="pass the same parameters= to both",
            )
    over_of = {str(key): node.stratum for key, node in prologue.outputs.items()}
    return {name: index.taken(total, over_of[name]) for name, total in frozen.sums.items()}


# ---------------------------------------------------------------- rows that can get a gradient


def live_rows(h: Hierarchy, dead_if: DeadIf, index: Index, given: Tensor, per_row: bool) -> Tensor:
    """bool `[B]`: the rows with a token whose coefficient may differ from 0. `given`: checked advantages.

    Over ranks, one all-gather for each stratum of `dead_if` whose elements may have tokens on several ranks.
    """
    nonzero = inputs.at_tokens(index, given, per_row) != 0  # NaN too: the loss refuses it
    of_leaf: dict[str, Tensor] = {}
    for leaf in index.leaves:
        at = index.tokens_of(leaf)
        of_leaf[leaf] = nonzero if at is None else nonzero[at]
    needed = {leaf: sorted(of or ()) for leaf, of in dead_if.needed.items()}
    found = {a: _of_elements(h, index, a, of_leaf[a.leaf]) for a in sorted({a for of in needed.values() for a in of})}
    rows = torch.zeros(index.n_rows, dtype=torch.int64, device=index.device)
    for leaf, of in needed.items():
        alive = torch.full_like(of_leaf[leaf], dead_if.needed[leaf] is None)
        for a in of:
            alive |= found[a] if a == (leaf, leaf) else found[a][index.parent(leaf, a.over)]
        rows.index_add_(0, index.row_tensor()[index.rows_of_tokens(leaf)], alive.long())
    return rows > 0


def _of_elements(h: Hierarchy, index: Index, a: Advantages, nonzero: Tensor) -> Tensor:
    """Per element of `a.over`, whether one of its advantages is not 0: bool [elements]."""
    if a.over == a.leaf:
        return nonzero
    found = torch.zeros(index.size[a.over], dtype=torch.int64, device=index.device)
    found.index_add_(0, index.parent(a.leaf, a.over), nonzero.long())
    ranks = index.ranks
    if ranks is not None and (ranks.cut or is_beyond_rows(h, Stratum(a.over))):
        found = ranks.group.all_gather(found, f"which {a.over}s have an advantage").sum(0)
    return found > 0
