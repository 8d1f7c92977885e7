"""The client package of Tinker against the stand-in of its service: weights and gradients of one step, off policy.

Everything but the service is the client's own: its custom loss, requests over several chunks, its wire format. The wire
has float32. So the expected values are those of `op.loss` in float64 at log-probs that were rounded to float32, with
coefficients that may be rounded once more.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import example_loops
import off_policy_step
import pytest
import tinker
import torch
from off_policy_step import LABELS, B, T
from torch import Tensor

from fibration import TrainerError
from fibration.trainers.tinker import custom_loss

stand_in = example_loops.example("tinker_stand_in")
ROUNDED = 2.0**-24  # the relative error of one rounding to float32
PROMPT = 3  # tokens, of which two are targets


def step() -> dict[str, Tensor]:
    """Tokens, and the tensors of a step whose ratios are those of `off_policy_step`."""
    return {
        **off_policy_step.step(),
        "tokens": torch.randint(32, (B, PROMPT + T), generator=torch.Generator().manual_seed(5)),
    }


def of_table(table: Tensor, tokens: Tensor) -> Tensor:
    """The log-probs of the sampled tokens, `[B, T]`."""
    return table.log_softmax(1)[tokens[:, PROMPT - 1 : -1], tokens[:, PROMPT:]]


def as_sent(values: Tensor) -> Tensor:
    return values.float().double()


def prompted(values: Tensor) -> Tensor:
    """A row's values of the targets, those of the prompt's first."""
    return torch.cat([torch.zeros(PROMPT - 1), values.nan_to_num(0.0)]).float()


Connect = Callable[..., tuple[Any, tinker.TrainingClient]]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    made = []

    def connected(**options: Any) -> tuple[Any, tinker.TrainingClient]:
        service = stand_in.Service(**options)
        threading.Thread(target=service.serve_forever, daemon=True).start()
        client = tinker.ServiceClient(base_url=service.url, api_key="tml-none")
        made.append((service, client))
        return service, client.create_lora_training_client(base_model="table").result()

    yield connected
    for service, client in made:
        client.close("success").result()
        service.shutdown()
        service.server_close()


def data_of(s: dict[str, Tensor], old: Tensor, **more: Any) -> list[tinker.Datum]:
    found = []
    for i, tokens in enumerate(s["tokens"]):
        fields = {
            "target_tokens": tokens[1:],
            "logprobs": prompted(old[i]),
            "mask": prompted(s["mask"][i]),
            "advantages": prompted(s["advantages"][i].expand(T)),
        }
        found.append(tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1].tolist()), loss_fn_inputs=fields))
    return found


def trained(connect: Connect, op: Any, labels: Any, parameters: Any) -> tuple[Any, ...]:
    """A step through the client; and the same step by `op.loss`, and the gradient's largest error by rounding."""
    weights = []

    def loss(log_probs: list[Tensor], given: list[Tensor]) -> Tensor:
        weights.extend((row.detach(), w) for row, w in zip(log_probs, given, strict=True))
        return stand_in.cross_entropy(log_probs, given)

    service, client = connect(loss=loss, chunk=5)  # several requests
    ((table, _),) = service.models.values()
    s = step()
    now = of_table(table, s["tokens"])
    sent = as_sent(now.detach())
    old = as_sent(sent - (s["new"] - s["old"]).nan_to_num(0.0))
    done = client.forward_backward_custom(data_of(s, old), custom_loss(op, labels, parameters=parameters)).result()
    gradient, table.grad = table.grad, None
    received = {tuple(row.tolist()): w for row, w in weights if w.any()}  # chunks come in any order

    rounded = now + (sent - now).detach()
    index = op.index(mask=s["mask"], **labels)
    result = op.loss(rounded, old, as_sent(s["advantages"]), index, parameters)
    (c,) = torch.autograd.grad(-result.loss, rounded, retain_graph=True)
    result.loss.backward()
    within = torch.zeros_like(table)  # |c| |∇ log π| of every token, added up
    for value, probabilities, (before, token) in zip(
        c.reshape(-1),
        table.detach().softmax(1)[s["tokens"][:, PROMPT - 1 : -1]].reshape(-1, len(table)),
        torch.stack([s["tokens"][:, PROMPT - 1 : -1], s["tokens"][:, PROMPT:]], -1).reshape(-1, 2).tolist(),
        strict=True,
    ):
        slope = probabilities.clone()
        slope[token] = 1 - slope[token]
        within[before] += value.abs() * slope
    everything = table.log_softmax(1)[s["tokens"][:, :-1], s["tokens"][:, 1:]].detach()
    got = torch.stack([received.get(tuple(row.tolist()), torch.zeros(PROMPT - 1 + T)) for row in everything])
    return done, got, gradient, result, c, table.grad, within


@pytest.mark.parametrize("name", ["fiberpo_domain", "gspo", "dapo"])
def test_the_service_gets_the_coefficients_of_the_whole_step_rounded_once(connect, name):
    op = off_policy_step.operator(name)
    labels = LABELS if name == "fiberpo_domain" else {}
    parameters = off_policy_step.budgets() if labels else None
    done, got, gradient, result, c, expected, within = trained(connect, op, labels, parameters)
    if labels:
        example_loops.every_regime(result.metrics)
    assert (c != 0).sum() > 20
    assert (got[:, : PROMPT - 1] == 0).all(), "prompts have weights"
    assert ((got[:, PROMPT - 1 :] - c).abs() <= (ROUNDED + 1e-12) * c.abs()).all()
    assert ((gradient - expected).abs() <= ROUNDED * within + 1e-15).all()
    assert done.metrics["loss:sum"] == pytest.approx(float(result.loss), rel=1e-12, abs=1e-15)
    found = {k: x for k, x in done.metrics.items() if k.startswith("fibration/")}
    assert found == pytest.approx(
        {f"fibration/{k}": x for k, x in result.scalars().items() if k != "loss" and math.isfinite(x)},
        rel=1e-9,
        abs=1e-15,
    )


def test_an_error_in_the_batch_is_the_error_of_the_future_and_of_a_call_before(connect):
    _, client = connect()
    s = step()
    bare = data_of(s, s["old"])
    value, _ = custom_loss(off_policy_step.operator("dapo"))(
        bare, [d.loss_fn_inputs["logprobs"].to_torch() for d in bare]
    )
    advantages = as_sent(s["advantages"])[:, None].expand(B, T)[s["mask"]]
    torch.testing.assert_close(value, -advantages.mean(), rtol=1e-12, atol=0)
    del bare[4].loss_fn_inputs["mask"]
    with pytest.raises(TrainerError, match=r"datum 4 has no loss_fn_inputs\['mask'\]"):
        client.forward_backward_custom(bare, custom_loss(off_policy_step.operator("dapo"))).result()
