"""What a call issues on a device that is not the CPU: no copy from the host, nothing read back, and few operations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hierarchies.advantage_formulas import FIELD, rewarded
from hierarchies.random_quivers import batch_for
from oracles.backend_cases import triton_interprets
from oracles.issued_operations import ELSEWHERE, called, counted, counting_operator, elsewhere
from support import OF_EVERY_KIND, SPECS, packed, padded, random_hierarchy, spec, spread_batch, trajectory
from thorough import some

from fibration import Parameter, after, before, exp
from fibration import token_log_ratio as x
from fibration.compiler.ir import Map, Scalar
from fibration.compiler.program import Program
from fibration.runtime import devices

BACKENDS = ["torch", *(["triton"] if triton_interprets() else [])]
# Operations of one call besides the kernels of the program: memory that is filled, results that are brought to a dtype.
BESIDES = {"loss": 20, "coefficients": 13, "advantages per row": 11, "gate": 18, "levels": 38}
PROGRAMS = {"loss": ["evaluate"], "gate": ["gate", "gate_adjoint"], "levels": ["levels"]}


@pytest.fixture
def patch():
    with pytest.MonkeyPatch.context() as found:
        yield found


def once_here(op, index, shape, patch):
    """Every call, on the CPU as if it were another device: nothing is looked at."""
    patch.setattr(devices, "can_sync", lambda device: False)
    for call in called(op, index, shape).values():
        call()
    patch.undo()


def operations(program: Program) -> int:
    """How many operators its values are made of, counting a choice as three: both constants of it may be made."""

    def every(s: Scalar) -> int:
        return (3 if s.op == "select" else 1) + sum(every(a) for a in s.args)

    return sum(every(n.body) if isinstance(n, Map) else 2 for n in program.nodes())


CASES = {name: (spec(name), batch_for(spec(name), 3)) for name in OF_EVERY_KIND}
CASES["totals of attributes"] = random_hierarchy(14), spread_batch()
for name, of in (("sums in order", spec("fiberpo_modal")), ("prefixes", spec("ppo"))):
    sums = before(x, over=trajectory, discount=Parameter("gamma", default=0.5, upper=1)) - after(x, over=trajectory)
    CASES[name] = of.replace(name="in_order", objective=of.objective.weigh(exp(sums))), batch_for(of, 3)


@pytest.mark.sampled
@pytest.mark.parametrize("name", dict.fromkeys([*some(CASES, 3), "sums in order", "totals of attributes"]))
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_call_reads_nothing_back_from_the_device(backend, name, patch):
    """The device has no numbers: whatever is read back raises, and so do tensors of two devices in one operation."""
    hierarchy, batch = CASES[name]
    op, launches = counting_operator(hierarchy, backend, patch)
    layout = padded(op, batch)
    once_here(op, layout.index, layout.shape, patch)
    for what, call in called(op, elsewhere(layout.index), layout.shape).items():
        call()  # the parameters' values are copied there, once
        launches.clear()
        with counted(patch) as issued:
            call()
        assert issued.copies == [], what
        programs = [op.programs[p] for p in PROGRAMS.get(what, ["objective"])]
        work = sum(map(operations, programs)) if backend == "torch" else 0
        assert issued.work.total() <= BESIDES[what] + work, (what, issued.work)
        # six for each program, where attributes are summed before the first sweep
        most = 16 if name in ("sums in order", "fiberpo_experts") else 12
        assert backend == "torch" or 0 < len(launches) <= most, what


@pytest.mark.parametrize("name", ["ppo", "gspo"])
def test_rows_without_gaps_need_fewer_operations(name, patch):
    """What a trainer's batch is: packed rows, and advantages per token or per row."""
    op, _ = counting_operator(spec(name), BACKENDS[-1], patch)
    layout = packed(op, spread_batch())
    once_here(op, layout.index, layout.shape, patch)
    calls = called(op, elsewhere(layout.index), layout.shape)
    for what, most in {"loss": 16, "coefficients": 9, "advantages per row": 5}.items():
        calls[what]()
        with counted(patch) as issued:
            calls[what]()
        assert issued.work.total() <= most, (what, issued.work)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["grpo", "kl_of_tokens"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_call_with_rewards_reads_nothing_back(backend, name, patch):
    """Whether advantages are made per row or per token; nor do ranks wait, besides their words."""
    h, batch = rewarded(FIELD[name]), spread_batch()
    for spread in (False, True):
        op, launches = counting_operator(h, backend, patch, *([False] if spread else []))
        layout = padded(op, batch, **({"group": Alone()} if spread else {}))

        def calls(index, op=op, shape=layout.shape):
            x, r = torch.zeros(shape, device=index.device), torch.ones(index.n_rows, device=index.device)
            given = {"reference": x, **({"old": x} if name == "kl_of_tokens" else {})} if h.policies else None
            others = {"reference": x} if h.policies else None
            yield lambda: op.coefficients(x, x, index=index, rewards=r, policies=others)
            yield lambda: op.advantages(x, index, policies=given)

        patch.setattr(devices, "can_sync", lambda device: False)
        for call in calls(layout.index):
            call()
        patch.undo()
        for call in calls(elsewhere(layout.index)):
            call()
            launches.clear()
            with counted(patch) as issued:
                call()
            assert issued.copies == []
            assert backend == "torch" or launches


class Alone:
    """A group of one rank: what ranks say to each other, without anybody else."""

    rank, size = 0, 1

    def all_gather(self, tensor):
        return [tensor]

    def all_gather_object(self, given):
        return [given]


ON_RANKS = [("torch", "gspo", False), ("torch", "gspo", True), (BACKENDS[-1], "fiberpo_experts", True)]
ON_RANKS += [("torch", "prefixes", True)]


@pytest.mark.sampled
@pytest.mark.parametrize(("backend", "name", "cut"), ON_RANKS)
def test_a_second_call_on_ranks_reads_nothing_back(backend, name, cut, patch):
    """Nor in a collective, besides the word that is sent before."""
    hierarchy, batch = CASES[name]
    op, launches = counting_operator(hierarchy, backend, patch, cut)
    keys = [r // (1 + cut) for r in range(len(batch.lengths))]
    batch = replace(batch, labels={k: [v[r - r % (1 + cut)] for r in range(len(v))] for k, v in batch.labels.items()})
    batch = replace(batch, positions=np.arange(batch.tokens))
    layout = padded(op, batch, group=Alone(), trajectory=keys)
    assert layout.index.ranks.cut == cut
    once_here(op, layout.index, layout.shape, patch)
    for what, call in called(op, elsewhere(layout.index), layout.shape).items():
        call()
        launches.clear()
        with counted(patch) as issued:
            call()
        assert issued.copies == [], what
        assert backend == "torch" or len(launches) > 0


@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_with_as_many_tokens_as_rows_advantages_are_not_read_back(name, patch):
    """Advantages may then be per token or per row: what disagrees is NaN."""
    op, _ = counting_operator(spec(name), "torch", patch)
    batch = spread_batch(lengths=(0, 2, 0, 3))
    layout = packed(op, replace(batch, lengths=(0, 2, 0, 3, 0), labels={}))
    once_here(op, layout.index, layout.shape, patch)
    for what, call in called(op, elsewhere(layout.index), layout.shape).items():
        call()
        with counted(patch) as issued:
            call()
        assert issued.copies == [], what


def test_the_first_call_with_other_parameters_copies_once(patch):
    """However many they are, for every index; and the count sees copies."""
    op, _ = counting_operator(spec("fiberpo_domain"), "torch", patch)
    layouts = [padded(op, spread_batch()) for _ in range(2)]
    for layout in layouts:
        once_here(op, layout.index, layout.shape, patch)
    first, second = (elsewhere(layout.index) for layout in layouts)
    for value in (0.0625, {"math": {"+": 0.5, "-": 0.25}, "code": 0.125}):
        given = {"C_domain": value, "epsilon": 0.0625}
        for index, copies in ((first, ["_to_copy"]), (first, []), (second, [])):
            call = called(op, index, layouts[0].shape, given)["loss"]
            with counted(patch) as issued:
                call()
            assert issued.copies == copies


@pytest.mark.parametrize("name", SPECS)
def test_reading_a_value_back_is_noticed(name, patch):
    """What this file rests on: the same calls, but for a device whose values may be looked at."""
    op, _ = counting_operator(spec(name), "torch", patch)
    layout = padded(op, spread_batch(per_row=True))
    once_here(op, layout.index, layout.shape, patch)
    calls = called(op, elsewhere(layout.index), layout.shape)
    patch.setattr(devices, "can_sync", lambda device: True)
    for call in calls.values():
        with pytest.raises((RuntimeError, NotImplementedError), match=r"meta|Meta"):
            call()


@pytest.mark.parametrize("make", [lambda: torch.tensor([1.0], device=ELSEWHERE), lambda: torch.ones(2).to(ELSEWHERE)])
def test_copies_to_the_device_are_noticed(make, patch):
    with counted(patch) as issued:
        make()
    assert len(issued.copies) == 1
