"""The functions of verl that the library overrides or reads exist. A new release of verl breaks these tests first."""

import inspect

from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker


def test_verls_policy_loss_and_reduction_have_the_parameters_that_are_used():
    assert list(inspect.signature(register_policy_loss).parameters) == ["name"]
    assert {"loss_mat", "loss_mask", "loss_agg_mode", "dp_size"} <= set(inspect.signature(agg_loss).parameters)
    assert '"token-sum"' in inspect.getsource(agg_loss)


def test_verls_worker_of_the_actor_can_be_replaced():
    assert issubclass(ActorRolloutRefWorker.actor_worker_cls, TrainingWorker)
    assert list(inspect.signature(TrainingWorker.train_batch).parameters) == ["self", "data"]


def test_a_micro_batch_can_have_fewer_rows():
    """The engine takes every micro-batch by `forward_step`, and the loss reads its rows from it."""
    assert list(inspect.signature(FSDPEngineWithLMHead.forward_step).parameters)[:2] == ["self", "micro_batch"]
    assert "self.forward_step(micro_batch, " in inspect.getsource(FSDPEngineWithLMHead.forward_backward_batch)
