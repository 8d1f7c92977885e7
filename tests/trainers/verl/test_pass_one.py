"""The pass before the one that is trained with: what it asks of verl's engine, in which mode."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from verl.utils import tensordict_utils as tu

from fibration.trainers.verl import FibrationTrainingWorker


def jagged(*rows):
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


@pytest.mark.parametrize("offloads", [False, True])
def test_it_is_in_training_mode_unless_activations_are_offloaded(offloads):
    """verl's hooks for these count a layer for every forward in training mode, and uncount it in its backward alone."""
    asked = []

    def infer_batch(data):
        asked.append((worker.engine.module.training, tu.get(data, "calculate_entropy")))
        return {"model_output": {"log_probs": jagged([-1.0, -2.0, -3.0, -9.0], [-4.0, -9.0])}, "loss": [1.0, 1.0]}

    worker = object.__new__(FibrationTrainingWorker)
    worker.engine = SimpleNamespace(module=nn.Linear(1, 1), infer_batch=infer_batch)
    worker.model_config = {"enable_activation_offload": offloads}
    given = tu.get_tensordict({"prompts": jagged([1, 2], [1]), "responses": jagged([1, 2], [3])})
    tu.assign_non_tensor(given, calculate_entropy=True)
    log_probs, forwards = worker._log_probs(given)
    assert asked == [(not offloads, False)]
    assert tu.get(given, "calculate_entropy") is True
    assert log_probs.tolist() == [[-2.0, -3.0], [-4.0, 0.0]]
    assert forwards == 2
