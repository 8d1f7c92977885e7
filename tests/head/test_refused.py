"""Wrong input of `fibration.head.loss` is refused with an error."""

import functools

import pytest
import torch
from support import operator, refuses, spec

import fibration
from fibration import BatchError

OP = operator(spec("grpo"))
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])
GIVEN = {
    "hidden": torch.zeros(2, 3, 4),
    "weight": torch.zeros(10, 4),
    "targets": torch.ones(2, 3, dtype=torch.int64),
    "old_log_probs": torch.full((2, 3), -1.0),
    "advantages": torch.ones(2),
    "index": OP.index(mask=MASK),
}


def call(**changed):
    return fibration.head.loss(OP, **(GIVEN | changed))


class Sharded(torch.Tensor):
    """Has the method by which a DTensor is known."""

    def full_tensor(self):
        return self


def at(tensor, place, value):
    tensor = tensor.clone()
    tensor[place] = value
    return tensor


REFUSED = {
    "a weight of hidden columns": (
        {"weight": torch.zeros(4, 10)}, {"what": "weight has shape [4, 10]", "required": "[V, 4]", "remedy": "weight.T"}
    ),
    "a weight of another width": ({"weight": torch.zeros(10, 5)}, {"what": "weight has shape [10, 5]"}),
    "a bias of another size": ({"bias": torch.zeros(9)}, {"what": "bias has shape [9]", "required": "[10]"}),
    "no tensor": ({"weight": [[1.0]]}, {"what": "weight: list"}),
    "whole numbers": ({"hidden": torch.zeros(2, 3, 4).long()}, {"what": "hidden: torch.int64"}),
    "flat hidden states": (
        {"hidden": torch.zeros(6, 4)}, {"what": "hidden has shape [6, 4]", "remedy": "hidden.unflatten(0, (2, 3))"}
    ),
    "a place too many": (
        {"hidden": torch.zeros(2, 4, 4)}, {"required": "[2, 3, H]", "remedy": "leave out the hidden state of the last"}
    ),
    "another batch": ({"hidden": torch.zeros(1, 3, 4)}, {"remedy": "one for each target"}),
    "two precisions": (
        {"hidden": torch.zeros(2, 3, 4).bfloat16()},
        {"what": "hidden is torch.bfloat16, and weight is torch.float32", "remedy": "hidden.to(torch.float32)"},
    ),
    "a shard of the weight": (
        {"weight": torch.zeros(10, 4).as_subclass(Sharded)},
        {"what": "weight is a DTensor", "required": "the whole vocabulary", "remedy": 'weight.full_tensor(grad_placements=[Partial("avg")])'},
    ),
    "a target beyond the vocabulary": (
        {"targets": at(GIVEN["targets"], (1, 2), 10)},
        {"what": "the target of token [1, 2] of trajectory 1 is 10", "required": "from 0 to 9", "remedy": "vocabulary over several ranks"},
    ),
    "a target that is none": ({"targets": at(GIVEN["targets"], (0, 1), -100)}, {"what": "token [0, 1] of trajectory 0 is -100"}),
    "targets of floats": ({"targets": torch.ones(2, 3)}, {"what": "targets: torch.float32", "required": "int64"}),
    "targets of another shape": ({"targets": torch.ones(6, dtype=torch.int64)}, {"what": "targets have shape [6]"}),
    "an old policy of another shape": ({"old_log_probs": torch.zeros(2, 4)}, {"what": "old_log_probs has shape [2, 4]"}),
    "an old policy that is learnt": (
        {"old_log_probs": torch.zeros(2, 3, requires_grad=True)}, {"what": "old_log_probs require grad"}
    ),
    "advantages of another shape": ({"advantages": torch.ones(3)}, {"what": "advantages have shape [3]"}),
    "no advantages": ({"advantages": None}, {"what": "reads the advantage, which is missing"}),
    "no index": ({"index": None}, {"what": "no index is given"}),
    "another policy": ({"policies": {"rollout": torch.zeros(2, 3)}}, {"what": "reads the policy 'rollout'"}),
    "hidden states that are not finite": (
        {"hidden": at(GIVEN["hidden"], (1, 0), float("nan"))},
        {"what": "the log-prob of token [1, 0] of trajectory 1 is nan", "found": "hidden states that are not finite"},
    ),
    "a target that the bias excludes": (
        {"bias": at(torch.zeros(10), 1, -float("inf"))},
        {"what": "the log-prob of token [0, 0] of trajectory 0 is -inf", "found": "finite hidden", "remedy": "the bias excludes"},
    ),
    "a temperature of 0": ({"temperature": 0}, {"what": "temperature is 0", "required": "above 0"}),
    "a temperature below 0": ({"temperature": -1.0}, {"what": "temperature is -1.0"}),
    "a softcap of 0": ({"softcap": 0.0}, {"what": "softcap is 0.0", "remedy": "leave it out"}),
    "an infinite bonus": ({"entropy_bonus": float("inf")}, {"what": "entropy_bonus is inf"}),
    "a bonus that is a tensor": ({"entropy_bonus": torch.ones(())}, {"what": "entropy_bonus is tensor(1.)"}),
    "an empty chunk": ({"chunk": 0}, {"what": "chunk is 0", "required": "at least 1"}),
    "a chunk that is True": ({"chunk": True}, {"what": "chunk is True"}),
}  # fmt: skip


@pytest.mark.parametrize("which", REFUSED)
def test_wrong_input_is_refused(which):
    changed, expected = REFUSED[which]
    refuses(BatchError, functools.partial(call, **changed), **expected)


def test_packed_hidden_states_of_padded_shape_are_refused():
    index = OP.index(offsets=[0, 2, 6])
    packed = {"targets": torch.ones(6).long(), "old_log_probs": -torch.ones(6), "index": index}
    refuses(BatchError, lambda: call(**packed), what="hidden has shape [2, 3, 4]", remedy="hidden.flatten(0, 1)")


def test_an_error_in_a_chunk_names_its_place_in_the_batch():
    refuses(
        BatchError, lambda: call(old_log_probs=at(GIVEN["old_log_probs"], (1, 2), float("nan")), chunk=2),
        what="rows 1 to 1, as a micro-batch: old_log_probs of token [0, 2]",
    )  # fmt: skip


def test_under_no_grad_inputs_may_require_grad():
    with torch.no_grad():
        call(old_log_probs=torch.zeros(2, 3, requires_grad=True))


def test_torch_compile_breaks_the_graph_and_transforms_are_refused():
    def loss(hidden):
        return 2 * call(hidden=hidden, weight=torch.ones(10, 4), metrics=False).loss

    hidden = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.compile(loss, backend="eager")(hidden), loss(hidden))
    refuses(BatchError, lambda: torch.func.grad(loss)(hidden), what="under a transform of torch.func")


def test_on_a_gpu_nothing_is_raised_and_the_loss_is_nan(monkeypatch):
    """As if on a GPU, where values are not read: a target out of range, or a hidden state that is not finite."""
    monkeypatch.setattr("fibration.runtime.devices.can_sync", lambda device: False)
    for which in ("a target beyond the vocabulary", "hidden states that are not finite"):
        hidden = torch.zeros(2, 3, 4, requires_grad=True)
        weight = torch.zeros(10, 4, requires_grad=True)
        changed = dict({"hidden": hidden, "weight": weight} | REFUSED[which][0])
        result = call(**changed)
        assert result.loss.isnan()
        result.loss.backward()
        assert weight.grad.isnan().any()
    assert not call().loss.isnan()
