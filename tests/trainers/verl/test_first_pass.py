"""The forward passes before a mini-batch is trained: the mode in which verl's engine runs them."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from verl.utils import tensordict_utils as tu

from fibration.trainers.verl import FibrationTrainingWorker


def jagged(*rows):
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


@pytest.mark.parametrize("offloads", [False, True])
def test_the_first_pass_is_in_training_mode_unless_activations_are_offloaded(offloads):
    """verl's hooks for these count a layer for every forward in training mode, and uncount it in its backward alone."""
    asked = []

    def infer_batch(data):
        said = [tu.get(data, name) for name in ("calculate_entropy", "use_dynamic_bsz", "micro_batch_size_per_gpu")]
        asked.append((worker.engine.module.training, *said))
        return {"model_output": {"log_probs": jagged([-1.0, -2.0, -3.0, -9.0], [-4.0, -9.0])}}

    worker = object.__new__(FibrationTrainingWorker)
    worker.engine = SimpleNamespace(module=nn.Linear(1, 1), infer_batch=infer_batch)
    worker.model_config = {"enable_activation_offload": offloads}
    given = tu.get_tensordict({"prompts": jagged([1], [3, 3, 3], [1, 2]), "responses": jagged([3], [4, 5], [1, 2])})
    tu.assign_non_tensor(given, calculate_entropy=True, use_dynamic_bsz=True)
    log_probs = worker._log_probs(given, torch.tensor([2, 0]))
    assert asked == [(not offloads, False, False, 2)]
    assert tu.get(given, "calculate_entropy") is True and tu.get(given, "use_dynamic_bsz") is True
    assert log_probs.tolist() == [[-2.0, -3.0], [-4.0, 0.0]]
