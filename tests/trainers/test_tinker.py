"""The custom loss of Tinker's client without the client: against `op.loss` on the padded step, off policy, in float64.

`tests/trainers/tinker` has the client package itself.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import off_policy_step
import pytest
import support
import torch
from off_policy_step import LABELS, B
from three_policy_losses import of_three
from torch import Tensor

import fibration
from fibration import BatchError, TrainerError
from fibration.trainers.scale import Scale
from fibration.trainers.tinker import custom_loss

PROMPTS = [1 + i % 3 for i in range(B)]  # tokens of each prompt but the first, which is no target
NAN = float("nan")
STRATA = {
    "dapo": (),
    "gspo": (),
    "fiberpo_domain": ("prompt_group", "domain"),
    "of_three": ("prompt_group", "domain"),
    "rloo": ("prompt_group",),
}


def data_of(step: dict[str, Tensor], **fields: str) -> tuple[list[Any], list[Tensor]]:
    """A datum per row, of its own length, with log-probs NaN on its prompt; and the current log-probs of its targets.

    `fields`: the name in a datum of every tensor of the step beside its mask and advantages.
    """
    data, now = [], []
    for i, prompt in enumerate(PROMPTS):
        length = int(step["mask"][i].nonzero().max()) + 1 if step["mask"][i].any() else 2

        def targets(values: Tensor, other: float, i: int = i, length: int = length, prompt: int = prompt) -> Tensor:
            row = values[i, :length] if values.ndim == 2 else values[i].expand(length)
            return torch.cat([torch.full((prompt,), other, dtype=row.dtype), row])

        given = {name: targets(step[of], NAN) for of, name in fields.items()}
        given |= {"mask": targets(step["mask"].double(), 0.0), "advantages": targets(step["advantages"], NAN)}
        data.append(SimpleNamespace(loss_fn_inputs={k: SimpleNamespace(to_torch=v.clone) for k, v in given.items()}))
        now.append(targets(step["new"], -1.0).nan_to_num(-1.0).requires_grad_())
    return data, now


def gradients(now: list[Tensor], step: dict[str, Tensor]) -> Tensor:
    """Of the data's log-probs, as rows of the padded step; those of prompts must be 0."""
    found = torch.zeros_like(step["new"])
    for i, (row, prompt) in enumerate(zip(now, PROMPTS, strict=True)):
        assert row.grad is not None and (row.grad[:prompt] == 0).all()
        found[i, : len(row) - prompt] = row.grad[prompt:]
    return found


def expected(op: Any, step: dict[str, Tensor], labels: Any, parameters: Any = None, **more: Any) -> tuple[Any, Tensor]:
    new = step["new"].clone().requires_grad_()
    if "rewards" not in more:
        more["advantages"] = step["advantages"]
    result = op.loss(new, step["old"], index=op.index(mask=step["mask"], **labels), parameters=parameters, **more)
    result.loss.backward()
    return result, new.grad


@pytest.mark.parametrize("name", STRATA)
def test_the_loss_is_that_of_the_whole_step(name):
    step = off_policy_step.step()
    op = support.operator(of_three if name == "of_three" else support.spec(name), "torch")
    labels = {stratum: LABELS[stratum] for stratum in STRATA[name]}
    parameters = off_policy_step.budgets() if name in ("fiberpo_domain", "of_three") else None
    given: dict[str, Any] = {}
    more: dict[str, Any] = {}
    if name == "of_three":
        given["policies"], more["policies"] = {"rollout": "sampled"}, {"rollout": step["rollout"]}
    if name == "rloo":
        rewards = torch.arange(B, dtype=torch.float64) % 5
        given["rewards"], more["rewards"] = rewards.tolist(), rewards
    wanted, gradient = expected(op, step, labels, parameters, **more)

    data, now = data_of(step, old="logprobs", rollout="sampled")
    loss, metrics = custom_loss(op, labels, parameters=parameters, **given)(data, now)
    loss.backward()
    assert float((gradients(now, step) - gradient).norm() / gradient.norm()) <= 1e-12
    torch.testing.assert_close(loss, wanted.loss, rtol=1e-12, atol=1e-15)
    assert metrics == pytest.approx(
        {f"fibration/{k}": x for k, x in wanted.scalars().items() if k != "loss"}, rel=1e-11, abs=1e-15
    )


def test_a_name_or_a_hierarchy_stands_for_its_operator():
    data, now = data_of(off_policy_step.step(), old="logprobs")
    losses = "dapo", support.spec("dapo"), fibration.compile(support.spec("dapo"))
    assert len({custom_loss(h, {})(data, now)[0].item() for h in losses}) == 1
    with pytest.raises(TrainerError, match="hierarchy"):
        custom_loss(3, {})


def test_data_with_one_key_are_one_trajectory():
    step, op = off_policy_step.step(), off_policy_step.operator()
    _, gradient = expected(op, step, LABELS, off_policy_step.budgets())
    data, now = data_of(step, old="logprobs")
    pieces, halves, keys = [], [], []
    for i, (datum, row) in enumerate(zip(data, now, strict=True)):
        fields = {name: value.to_torch() for name, value in datum.loss_fn_inputs.items()}
        for part in (slice(0, len(row) // 2), slice(len(row) // 2, None)):
            cut = {name: SimpleNamespace(to_torch=values[part].clone) for name, values in fields.items()}
            pieces.append(SimpleNamespace(loss_fn_inputs=cut))
            halves.append(row[part])
            keys.append(f"t{i}")
    labels = {name: [label for label in given for _ in "ab"] for name, given in LABELS.items()}
    loss = custom_loss(op, {"trajectory": keys, **labels}, parameters=off_policy_step.budgets())
    loss(pieces, halves)[0].backward()
    assert float((gradients(now, step) - gradient).norm() / gradient.norm()) <= 1e-12


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mask": None}, "datum 3 has no loss_fn_inputs['mask']"),
        ({"advantages": None}, "datum 3 has no loss_fn_inputs['advantages']"),
        ({"logprobs": torch.zeros(2)}, "loss_fn_inputs['logprobs'] of datum 3 has shape [2]"),
        ({"mask": torch.zeros(4, 1)}, "loss_fn_inputs['mask'] of datum 3 has shape [4, 1]"),
    ],
)
def test_a_field_that_does_not_fit_is_an_error_that_names_the_datum(change, says):
    data, now = data_of(off_policy_step.step(), old="logprobs")
    for field, values in change.items():
        del data[3].loss_fn_inputs[field]
        if values is not None:
            data[3].loss_fn_inputs[field] = SimpleNamespace(to_torch=values.clone)
    with pytest.raises(TrainerError) as caught:
        custom_loss(off_policy_step.operator("dapo"))(data, now)
    assert says in str(caught.value)


def test_attributes_of_tokens_are_fields_of_the_data():
    """`entropy_mask` drops the tokens below a quantile of all entropies."""
    step, op = off_policy_step.step(), off_policy_step.operator("entropy_mask")
    step["entropy"] = torch.rand(step["new"].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    new = step["new"].clone().requires_grad_()
    index = op.index(mask=step["mask"], attributes={"entropy": step["entropy"]})
    loss = op.loss(new, step["old"], step["advantages"], index).loss
    loss.backward()
    data, now = data_of(step, old="logprobs", entropy="entropies")
    found, _ = custom_loss(op, attributes={"entropy": "entropies"})(data, now)
    found.backward()
    assert float(found.detach()) == pytest.approx(float(loss.detach()), rel=1e-12)
    assert float((gradients(now, step) - new.grad).norm() / new.grad.norm()) <= 1e-12


def test_a_formula_of_advantages_needs_rewards():
    """Data have advantages too, and these would silently train another loss."""
    with pytest.raises(TrainerError, match=r"'rloo' makes its own advantages") as caught:
        custom_loss(off_policy_step.operator("rloo"), {"prompt_group": LABELS["prompt_group"]})
    assert "rewards=[...]" in str(caught.value)


def test_log_probs_of_several_candidates_per_token_are_refused():
    data, now = data_of(off_policy_step.step(), old="logprobs")
    now[0] = now[0][:, None].expand(-1, 2)
    with pytest.raises(TrainerError, match=r"log-probs of shape \[\d+, 2\]"):
        custom_loss(off_policy_step.operator("dapo"))(data, now)


def cross_entropy(log_probs: Tensor, weights: Tensor) -> Tensor:
    """Of one row in Tinker's service."""
    return -(weights * log_probs).sum()


def divided_by_the_weights(log_probs: Tensor, weights: Tensor) -> Tensor:
    """Of one row in SkyRL 0.3.0, `skyrl/backends/jax.py`, `loss_for_lora`, and at `a956457` too."""
    return cross_entropy(log_probs, weights) / weights.sum().clamp(min=1e-9)


@pytest.mark.parametrize("service", [cross_entropy, divided_by_the_weights])
def test_a_service_that_divides_rows_by_their_weights_is_found_by_the_scale(service):
    """The gradient of cross-entropy in a weight is minus the log-prob, whatever the weights are."""
    step = off_policy_step.step()
    data, now = data_of(step, old="logprobs")
    labels, parameters = LABELS, off_policy_step.budgets()
    custom_loss(off_policy_step.operator(), labels, parameters=parameters)(data, now)[0].backward()
    scale = Scale("the service's loss")
    for row in now:
        log_probs, mask = row.detach()[None], torch.ones(1, len(row))
        service(log_probs[0], scale.expects(-row.grad[None], log_probs, mask)[0]).backward()
    if service is cross_entropy:
        scale.checked()
    else:
        with pytest.raises(TrainerError, match=r"the service's loss scales advantages by another factor"):
            scale.checked()


@pytest.mark.parametrize("option", ["labels", "policies", "attributes"])
@pytest.mark.parametrize("given", [["a", "b"], [("prompt_group", ["a"])], "prompt_group", 3])
def test_what_is_no_mapping_is_refused_before_the_first_step(option, given):
    """A list of labels has no name of a stratum. An error within the loss would end the client."""
    op = support.operator(support.spec("rloo"), "torch")
    kind, fix = type(given).__name__, f"{option}={{'"
    support.refuses(
        BatchError,
        lambda: custom_loss(op, rewards=[0.0], **{option: given}),
        what=f"{option}=",
        required="a mapping from names",
        found=kind,
        remedy=fix,
    )
