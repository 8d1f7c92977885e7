"""The functions of TRL that the library overrides or reads exist. A new release of TRL breaks these tests first."""

import inspect

import pytest
from transformers import Trainer
from trl import GRPOTrainer
from trl.trainer import grpo_trainer


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("_set_signature_columns_if_needed", ()),
        ("_generate_and_score_completions", ("inputs",)),
        ("_prepare_inputs", ("generation_batch",)),
        ("_compute_loss", ("model", "inputs")),
        ("_get_per_token_logps_and_entropies", ("model", "input_ids", "attention_mask", "logits_to_keep")),
    ],
)
def test_methods_of_trl_have_the_parameters_that_are_used(method, arguments):
    assert list(inspect.signature(getattr(GRPOTrainer, method)).parameters)[1 : len(arguments) + 1] == list(arguments)


def test_trl_shuffles_rows_by_a_function_that_can_be_replaced():
    assert "= shuffle_sequence_dict(generation_batch)" in inspect.getsource(GRPOTrainer._prepare_inputs)
    assert inspect.unwrap(GRPOTrainer._prepare_inputs).__globals__ is vars(grpo_trainer)


def test_transformers_does_not_divide_a_loss_that_is_scaled_for_accumulation():
    """A loss that says that it is scaled for accumulation is not divided by its steps."""
    assert "loss_is_scaled_for_ga" in inspect.getsource(GRPOTrainer)
    assert "loss_is_scaled_for_ga" in inspect.getsource(Trainer.training_step)


def test_terms_that_all_rows_get_are_known_by_these_names():
    source = inspect.getsource(GRPOTrainer)
    for name in ("self._entropy_bonus_enabled =", "self.aux_loss_enabled =", "self.router_aux_loss_coef ="):
        assert name in source
