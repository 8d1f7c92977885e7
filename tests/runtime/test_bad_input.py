"""Tensors that do not fit are refused by the call."""

import math

import numpy as np
import pytest
import torch
from support import fresh, operator, refuses, spec, token

from fibration import (
    BatchError,
    Gate,
    Hierarchy,
    HierarchyIndexError,
    clip_gate,
    exp,
    log_prob,
    log_ratio,
    policies,
    residual,
    token_mean,
)

old, rollout, reference = policies("old rollout reference")

FIBERPO = operator(spec("fiberpo"))
PPO = operator(spec("ppo"))
MASK = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])


def tensors(**changes):
    """Arguments of `loss` for a padded batch of FiberPO, some of them changed."""
    arguments = {
        "log_probs": torch.zeros(3, 3), "old_log_probs": torch.zeros(3, 3), "advantages": torch.ones(3),
        "index": FIBERPO.index(mask=MASK),
    }  # fmt: skip
    return {**arguments, **changes}


def poked(row, column, value, dtype=torch.float32):
    t = torch.zeros(3, 3, dtype=dtype)
    t[row, column] = value
    return t


BATCHES = {
    "nan": (
        {"log_probs": poked(0, 1, math.nan)},
        dict(what="log_probs of token [0, 1] of trajectory 0 is nan", required="finite values on every unmasked token", remedy="mask the token"),
    ),
    "inf": ({"log_probs": poked(1, 0, -math.inf)}, dict(what="log_probs of token [1, 0] of trajectory 1 is -inf")),
    "old nan": ({"old_log_probs": poked(1, 0, math.nan)}, dict(what="old_log_probs of token [1, 0] of trajectory 1 is nan")),
    "both infinite": (
        {"log_probs": poked(0, 0, -math.inf), "old_log_probs": poked(0, 0, -math.inf)},
        dict(what="log_probs of token [0, 0] of trajectory 0 is -inf"),
    ),
    "too far apart": (
        {"log_probs": poked(0, 0, 1.5e308, torch.float64), "old_log_probs": poked(0, 0, -1.5e308, torch.float64)},
        dict(what="the log ratio of token [0, 0] of trajectory 0 is inf"),
    ),
    "nan advantage": (
        {"advantages": torch.tensor([1.0, math.nan, math.nan])},
        dict(what="the advantage of trajectory 1 is nan", required="finite values", remedy="mask the row"),
    ),
    "infinite advantage": ({"advantages": poked(0, 1, math.inf)}, dict(what="the advantage of token [0, 1] of trajectory 0 is inf")),
    "shape": ({"log_probs": torch.zeros(3, 4)}, dict(what="log_probs has shape [3, 4]", required="[3, 3], the shape of the index")),
    "old shape": ({"old_log_probs": torch.zeros(3)}, dict(what="old_log_probs has shape [3]", required="[3, 3]")),
    "flat": ({"log_probs": torch.zeros(9)}, dict(what="log_probs has shape [9]", remedy="log_probs.reshape(3, 3)")),
    "advantages' shape": (
        {"advantages": torch.ones(2)},
        dict(what="advantages have shape [2]", required="[3, 3] per token, or [3] per row"),
    ),
    "advantages per column": ({"advantages": torch.ones(3, 1)}, dict(what="advantages have shape [3, 1]", remedy="advantages.squeeze(-1)")),
    "advantages in a row": ({"advantages": torch.ones(1, 3)}, dict(what="advantages have shape [1, 3]", remedy="advantages.squeeze(0)")),
    "advantages of wider rows": ({"advantages": torch.ones(3, 5)}, dict(what="advantages have shape [3, 5]", remedy="5 places here, and 3 in the index")),
    "logits": (
        {"log_probs": torch.zeros(3, 3, 7)},
        dict(what="log_probs has shape [3, 3, 7]", remedy="log_probs.log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)"),
    ),
    "one place more": ({"old_log_probs": torch.zeros(3, 4)}, dict(what="old_log_probs has shape [3, 4]", remedy="4 places here, and 3 in the index")),
    "a last dimension": ({"log_probs": torch.zeros(3, 3, 1)}, dict(what="log_probs has shape [3, 3, 1]", remedy="log_probs.squeeze(-1)")),
    "integers": ({"log_probs": torch.zeros(3, 3, dtype=torch.int64)}, dict(what=("log_probs", "torch.int64"), required="float32, bfloat16, float16 or float64", remedy="log_probs.float()")),
    "booleans": ({"old_log_probs": torch.zeros(3, 3, dtype=torch.bool)}, dict(what=("old_log_probs", "torch.bool"))),
    "complex": ({"log_probs": torch.zeros(3, 3, dtype=torch.complex64)}, dict(what=("log_probs", "torch.complex64"))),
    "numpy": ({"log_probs": np.zeros((3, 3))}, dict(what=("log_probs", "ndarray"), required="a tensor", remedy="torch.from_numpy(log_probs)")),
    "a list": ({"log_probs": [[0.0] * 3] * 3}, dict(what=("log_probs", "list"), remedy="torch.tensor(log_probs, dtype=torch.float32)")),
    "none": ({"old_log_probs": None}, dict(what=("old_log_probs", "NoneType"))),
    "integer advantages": ({"advantages": torch.ones(3, dtype=torch.int32)}, dict(what=("advantages", "torch.int32"), required="a floating-point tensor", remedy="advantages.float()")),
    "a number as advantages": ({"advantages": 1.0}, dict(what=("advantages", "float"))),
    "no advantages": ({"advantages": None}, dict(what=("advantage", "'fiberpo'"), required="advantages per token or per row", remedy="pass advantages=")),
    "another device": ({"log_probs": torch.zeros(3, 3, device="meta")}, dict(what="log_probs is on meta", required="cpu, the device of the index", remedy="device=")),
    "old on another device": ({"old_log_probs": torch.zeros(3, 3, device="meta")}, dict(what="old_log_probs is on meta")),
    "advantages on another device": ({"advantages": torch.ones(3, device="meta")}, dict(what="advantages are on meta", required="cpu")),
    "another hierarchy's index": (
        {"index": PPO.index(mask=MASK)},
        dict(what="the index was built for 'ppo'", required="an index of 'fiberpo'", remedy="this operator's index(...)"),
    ),
    "no index": ({"index": MASK}, dict(what="the index is a Tensor", required="operator.index(...)")),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("which", BATCHES)
def test_wrong_tensors_are_named(which):
    changes, expected = BATCHES[which]
    for call in (FIBERPO.loss, FIBERPO.coefficients):
        refuses(BatchError, lambda call=call: call(**tensors(**changes)), **expected)


def test_the_unchanged_tensors_are_valid():
    FIBERPO.loss(**tensors())


def test_an_index_of_a_hierarchy_with_other_defaults_is_refused():
    """Same name, same strata; different default budgets."""
    other = spec("fiberpo").replace(gates={**spec("fiberpo").gates, token: clip_gate(0.5)})
    index = operator(other).index(mask=MASK)
    refuses(
        BatchError,
        lambda: FIBERPO.loss(**tensors(index=index)),
        what="built for 'fiberpo'",
        remedy="this operator's index",
    )


def test_gate_and_levels_refuse_log_ratios_that_are_not_finite():
    index = FIBERPO.index(offsets=[0, 2, 2, 3])
    x = torch.tensor([0.0, 0.0, math.nan])
    for call in (FIBERPO.gate, FIBERPO.levels):
        refuses(BatchError, lambda call=call: call(x, index), what="log_ratio of token [2] of trajectory 2 is nan")


@pytest.mark.parametrize("name", ["ppo", "grpo", "dapo", "dr_grpo", "gspo"])
def test_gate_needs_advantages_if_a_gate_reads_them(name):
    op = operator(spec(name))
    x = torch.zeros(2)
    index = op.index(offsets=[0, 2])
    for call in (op.gate, op.levels):
        refuses(
            BatchError, lambda call=call: call(x, index), what=("reads the advantage", f"'{name}'"),
            required="advantages per token or per row", remedy="pass advantages=...",
        )  # fmt: skip


def test_gspo_needs_one_advantage_per_trajectory():
    op = operator(spec("gspo"))
    index = op.index(offsets=[0, 2, 4])
    x = torch.zeros(4)
    a = torch.tensor([1.0, 1.0, 2.0, 3.0])
    for call in (lambda: op.loss(x, x, a, index), lambda: op.gate(x, index, advantages=a)):
        refuses(
            BatchError, call, what=("the gate on trajectory reads its advantage", "vary within a trajectory"),
            required="one advantage per trajectory", found="of trajectory 1", remedy="pass advantages per row",
        )  # fmt: skip
    op.loss(x, x, torch.tensor([1.0, 1.0, 2.0, 2.0]), index)


MASKED = operator(
    Hierarchy(
        name="masked",
        gates={token: Gate(residual * (1 + exp(log_prob(old))))},
        decomposition=log_ratio(),
        objective=token_mean().weigh(exp(log_prob(old) - log_prob(rollout))).keep(log_prob(reference) > -3),
    )
)
ROLLOUT = torch.full((3, 3), -1.0)
GIVEN = {"rollout": ROLLOUT, "reference": ROLLOUT}
POLICIES = {
    "none": (None, dict(
        what="'masked' reads the policy 'rollout', whose log-probs are missing",
        found="weigh(exp(log_prob(old) - log_prob(rollout)))", remedy='policies={"rollout": log_probs}',
    )),
    "one lacks": ({"rollout": ROLLOUT}, dict(what="the policy 'reference'", found="keep(log_prob(reference) > -3)")),
    "None": ({**GIVEN, "rollout": None}, dict(what="the policy 'rollout'", remedy="policies=")),
    "a slip": ({**GIVEN, "rolout": ROLLOUT}, dict(
        what="no formula of 'masked' reads the policy 'rolout'", required="one of 'rollout', 'reference'", remedy="correct its name",
    )),
    "current": ({**GIVEN, "current": ROLLOUT}, dict(what="'current'", required="log_probs of this call gives current")),
    "old": ({**GIVEN, "old": ROLLOUT}, dict(what="'old'", required="old_log_probs of this call gives old")),
    "a tensor": (ROLLOUT, dict(what="policies are a Tensor", required="a mapping", remedy="policies={'rollout': log_probs}")),
    "shape": ({**GIVEN, "rollout": ROLLOUT[0]}, dict(what="policies['rollout'] has shape [3]", required="[3, 3]")),
    "dtype": ({**GIVEN, "rollout": ROLLOUT.long()}, dict(what="policies['rollout']: torch.int64", required="float32, bfloat16")),
    "device": ({**GIVEN, "rollout": ROLLOUT.to("meta")}, dict(what="policies['rollout'] is on meta", required="cpu")),
    "nan": ({**GIVEN, "rollout": poked(1, 0, math.nan)}, dict(what="policies['rollout'] of token [1, 0] of trajectory 1 is nan")),
    "inf": ({**GIVEN, "reference": poked(0, 1, -math.inf)}, dict(what="policies['reference'] of token [0, 1] of trajectory 0 is -inf")),
}  # fmt: skip


@pytest.mark.parametrize("which", POLICIES)
def test_wrong_policies_are_refused(which):
    given, expected = POLICIES[which]
    arguments = {**tensors(index=MASKED.index(mask=MASK)), "policies": given}
    for call in (MASKED.loss, MASKED.coefficients):
        refuses(BatchError, lambda call=call: call(**arguments), **expected)


def test_gate_refuses_wrong_policies():
    """It takes log ratios: the log-probs of `old` are then those of a policy. Above 0 they are taken as they are."""
    index, x = MASKED.index(mask=MASK), torch.full((3, 3), 0.5)
    for call in (MASKED.gate, MASKED.levels):
        call(x, index, policies={"old": ROLLOUT})
        call(x, index, policies={"old": -ROLLOUT, **GIVEN})
        for given, expected in (
            ({}, dict(what="the policy 'old'", found="the gate on token", remedy='policies={"old": log_probs}')),
            ({"current": x}, dict(what="'current'", required="log_ratio of this call gives current")),
            ({"old": poked(0, 0, math.nan)}, dict(what="old_log_probs of token [0, 0] of trajectory 0 is nan")),
        ):
            refuses(BatchError, lambda call=call, given=given: call(x, index, policies=given), **expected)
    refuses(
        BatchError,
        lambda: PPO.gate(x, PPO.index(mask=MASK), policies={"rollout": x}),
        what="'rollout'",
        required="no policies",
    )


def test_parent_of_a_stratum_that_is_not_coarser_is_an_error():
    with pytest.raises(HierarchyIndexError, match="'trajectory' does not lie over 'nothing' in 'fiberpo'"):
        FIBERPO.index(mask=MASK).parent("trajectory", "nothing")


@pytest.mark.parametrize("which", ["log_probs", "old_log_probs"])
def test_negated_log_probs_are_refused_at_the_first_call(which):
    """Looked at once: the first call of an operator. What is under the mask says nothing."""
    op = fresh("fiberpo")
    x = torch.linspace(-2, -0.1, 12).reshape(3, 4)
    under = torch.tensor([[0.0, 0, 0, math.nan]])
    index = op.index(mask=torch.tensor([[1, 1, 1, 0]] * 3))
    given = {"log_probs": x + under, "old_log_probs": x - 0.1 + under}
    turned = {**given, which: -given[which]}
    refuses(
        BatchError, lambda: op.loss(**turned, advantages=torch.ones(3), index=index),
        what=f"{which} are above 0 at 9 of 9 tokens, and below 0 at none", required="at most 0",
        found="at token [0, 0] of trajectory 0", remedy=f"pass -{which}",
    )  # fmt: skip
    op.loss(**given, advantages=torch.ones(3), index=index)
    op.loss(**turned, advantages=torch.ones(3), index=index)


ORDERS = {  # of the arguments: log_probs, old_log_probs, policies["rollout"], advantages
    "old_log_probs": ("log_probs", "advantages", "rollout", "old"),
    "log_probs": ("advantages", "old", "rollout", "log_probs"),
    "policies['rollout']": ("log_probs", "old", "advantages", "rollout"),
    "log_probs, in turn": ("advantages", "log_probs", "rollout", "old"),
}
RIGHT = ("log_probs", "old", "rollout", "advantages")
DTYPES = {torch.float32: 4e-5, torch.float64: 4e-5, torch.bfloat16: 0.07, torch.float16: 0.009}  # beyond rounding


def random_call(seed):
    """A batch of 5 to 8 rows, with one advantage above 0 at an unmasked token, and anything under the mask."""
    g, dtype = torch.Generator().manual_seed(seed), list(DTYPES)[seed % 4]
    shape = (5 + seed % 4, 5 + seed % 5)
    mask = torch.rand(shape, generator=g) < 0.7
    mask[0, 0] = True
    given = {name: -0.01 - torch.rand(shape, generator=g) for name in ("log_probs", "old", "rollout")}
    given["advantages"] = -torch.rand(shape, generator=g)
    given["advantages"][0, 0] = DTYPES[dtype]
    under = (lambda t: t) if seed % 3 == 0 else (lambda t: torch.where(mask, t, math.nan if seed % 3 == 1 else 7.0))
    return mask, {name: under(t).to(dtype) for name, t in given.items()}


@pytest.mark.parametrize("which", ORDERS)
def test_exchanged_arguments_are_refused_in_every_call(which):
    """Of a first call on an index and of a later one, which is not checked in full."""
    op, order = operator(spec("tis")), ORDERS[which]

    def call(names, given, index, metrics=True):
        a, b, c, d = (given[name] for name in names)
        return op.coefficients(a, b, d, index, policies={"rollout": c}, metrics=metrics)

    for seed in range(24):
        mask, given = random_call(seed)
        index = op.index(mask=mask)
        expected = dict(
            what=f"{which.split(',')[0]} and advantages look exchanged",
            found="of token [0, 0] of trajectory 0 is", remedy="old_log_probs=",
        )  # fmt: skip
        refuses(BatchError, lambda: call(order, given, index), **expected)  # noqa: B023
        right = call(RIGHT, given, index)
        refuses(BatchError, lambda: call(order, given, index), **expected)  # noqa: B023
        assert torch.equal(call(RIGHT, given, index).values, right.values)


def test_what_only_looks_exchanged_is_accepted():
    x, up, down = torch.full((3, 3), -1.0), torch.ones(3, 3), -torch.ones(3, 3)
    index = PPO.index(mask=MASK)
    rounded = x + 0
    rounded[0, 0] = 2.0**-15
    for _ in range(2):
        PPO.loss(rounded, x, down, index)  # by rounding
        PPO.loss(up, torch.zeros(3, 3), down, index)  # log ratios beside zeros
        PPO.loss(x, x, down, index)  # no answer was right
        PPO.loss(x, x, torch.zeros(3, 3), index)
        PPO.loss(x, x, -torch.ones(3), index)  # per row


def test_exchanged_rewards_and_frozen_arguments_are_refused():
    rewarded, frozen = operator(spec("grpo_rewards")), operator(spec("geometric_mask"))
    x, rewards = -torch.arange(1.0, 9.0)[:, None].repeat(1, 3), torch.zeros(8, 3)
    rewards[0] = torch.tensor([1, 1, 9])
    groups = {s.name: [0] * 8 for s in rewarded.hierarchy.groups}
    index = rewarded.index(mask=torch.ones(8, 3), **groups)
    refuses(
        BatchError, lambda: rewarded.loss(x, rewards, index=index, rewards=x), what="old_log_probs and rewards look exchanged"
    )  # fmt: skip
    index = frozen.index(mask=torch.ones(8, 3))
    refuses(
        BatchError, lambda: frozen.freeze(rewards, x, index, policies={"rollout": x}),
        what="old_log_probs and advantages look exchanged",
    )  # fmt: skip


def test_a_first_call_on_a_gpu_is_checked(monkeypatch):
    """Later ones are not, because reading a value waits for the device."""
    op, x, advantages = fresh("ppo"), -torch.arange(1.0, 10.0).reshape(3, 3), torch.ones(3, 3)
    index = op.index(mask=torch.ones(3, 3))
    monkeypatch.setattr("fibration.runtime.devices.can_sync", lambda device: False)
    refuses(BatchError, lambda: op.loss(x, advantages, x, index), what="old_log_probs and advantages look exchanged")
    op.loss(x, x, advantages, index)
    op.loss(x, advantages, x, index)
