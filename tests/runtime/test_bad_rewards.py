"""Rewards that do not fit are refused, and groups without advantages; harmless values are accepted."""

import math
from functools import partial

import pytest
import torch
from hierarchies.advantage_formulas import FIELD, rewarded
from oracles.backend_cases import BACKENDS_HERE
from support import operator, prompt_group, refuses, token, trajectory

from fibration import (
    BatchError,
    Fibration,
    Gate,
    HierarchyIndexError,
    ParameterError,
    Stratum,
    advantage,
    after,
    centred,
    identity_gate,
    log_ratio,
    mean,
    residual,
    reward,
    standardised,
    total,
    uniform,
    where,
)
from fibration.runtime import devices

MASK = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1]])
GROUPS = {"prompt_group": ["q", "p", None, "q"], "domain": ["m"] * 4}
NAN, ZEROS = math.nan, torch.zeros(4, 3)
R = torch.tensor([1.0, 2.0, NAN, 4.0])
exact = standardised(reward, over=prompt_group, epsilon=0)


def made(formula, **groups):
    op = operator(rewarded(formula))
    return op, op.index(mask=MASK, **{**GROUPS, **groups})


def calls(op, index, rewards=R, **more):
    """Every call that takes rewards."""
    by_name = dict(index=index, rewards=rewards, **more)
    yield partial(op.loss, ZEROS, ZEROS, **by_name)
    yield partial(op.coefficients, ZEROS, ZEROS, **by_name, metrics=False)
    if "advantages" not in more:
        yield partial(op.advantages, rewards, index, **more)


def poked(place, value):
    found = torch.ones(4, 3)
    found[place] = value
    return found


OPO, GRPO = FIELD["opo"], FIELD["grpo"]
TENSORS = {
    "shape": (GRPO, torch.ones(3), dict(what="rewards have shape [3]", required="[4, 3] per token, or [4] per row")),
    "integers": (GRPO, torch.ones(4, dtype=torch.int64), dict(what="rewards: torch.int64", required="floating-point")),
    "a list": (GRPO, [1.0] * 4, dict(what="rewards: list")),
    "device": (GRPO, torch.ones(4, device="meta"), dict(what="rewards are on meta", required="cpu")),
    "nan of a row": (GRPO, torch.tensor([1, NAN, 1, 1]), dict(what="the reward of trajectory 1 is nan", required="every row", remedy="mask the row")),
    "nan of a token": (OPO, poked((0, 1), NAN), dict(what="the reward of token [0, 1] of trajectory 0 is nan", remedy="mask the token")),
    "infinite": (OPO, poked((3, 2), -math.inf), dict(what="the reward of token [3, 2] of trajectory 3 is -inf")),
    "rows read, tokens given": (
        GRPO, poked((0, 1), 3.0),
        dict(what=("the formula of advantages reads the reward of a trajectory", "vary within a trajectory"),
             required="one reward per trajectory", found="1 at token [0, 0] of trajectory 0, and 3 at token [0, 1]", remedy="pass rewards per row"),
    ),
    "beyond float64": (GRPO * 1e299 * 1e299, R, dict(what="the advantage of trajectory 0 is -inf", required="a finite advantage")),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("which", TENSORS)
def test_wrong_rewards_are_refused(which):
    formula, given, expected = TENSORS[which]
    for call in calls(*made(formula), given):
        refuses(BatchError, call, **expected)


def test_rewards_together_with_advantages_are_refused():
    op, index = made(GRPO)
    for call in calls(op, index, advantages=torch.ones(4)):
        refuses(BatchError, call, what="rewards and advantages are given", required="one of them", remedy="leave")
    refuses(BatchError, lambda: op.loss(ZEROS, ZEROS, index, rewards=R), what="rewards and", remedy="index=...")
    refuses(
        BatchError, lambda: op.loss(ZEROS, ZEROS, index=index), what="reads the advantage, which is missing",
        remedy="pass advantages=..., or rewards=...",
    )  # fmt: skip
    refuses(BatchError, lambda: op.loss(ZEROS, ZEROS, rewards=R), what="no index is given", remedy="index=...")
    refuses(BatchError, lambda: op.loss(ZEROS, ZEROS, torch.ones(4)), what="no index is given")
    refuses(BatchError, lambda: op.loss(ZEROS, ZEROS, index, index), what="advantages: Index", remedy="index=...")
    plain = operator(rewarded(GRPO).replace(advantages=None))
    for call in calls(plain, plain.index(mask=MASK, **GROUPS)):
        refuses(
            BatchError, call, what="rewards are given, and 'rewarded' has no formula for advantages",
            required="advantages=...", remedy="declare Hierarchy(advantages=",
        )  # fmt: skip
    other = made(OPO)[1]
    for call in calls(op, other):
        refuses(BatchError, call, what="the index was built for 'rewarded'")
    op.loss(ZEROS, ZEROS, torch.ones(4), index)


def test_a_mean_of_others_in_a_group_of_one_is_refused():
    """Calls with rewards refuse it; advantages that are given are compared already."""
    op, index = made(FIELD["rloo"], prompt_group=["q", "p", "p", "q"])
    for call in calls(op, index):
        refuses(
            HierarchyIndexError, call,
            what="prompt_group 'p' has only one trajectory: trajectory 1", required="at least two",
            found="1 of 2 prompt_group elements", remedy="leave_one_out=True",
        )  # fmt: skip
    op.loss(ZEROS, ZEROS, torch.ones(4), index)
    made(FIELD["rloo"], prompt_group=["q", "q", None, "q"])
    made(FIELD["dr_grpo"])


@pytest.mark.parametrize("sums", [after(reward, over=trajectory), total(reward / 2, over=trajectory)])
def test_rewards_per_row_in_a_sum_over_tokens_are_refused(sums):
    op, index = made(reward + sums)
    for call in calls(op, index, torch.ones(4)):
        refuses(
            BatchError, call, what="rewards are given per row", required="[4, 3], one per token",
            found="adds up the rewards of tokens, in reward + ", remedy="to its last token",
        )  # fmt: skip
    assert op.advantages(torch.ones(4, 3), index).shape == (4, 3)
    with pytest.raises(BatchError, match=r"rewards have shape \[5\]"):
        op.advantages(torch.ones(5), index)


def test_equal_rewards_divided_by_their_deviation_without_an_epsilon_are_refused():
    op, index = made(exact, prompt_group=["q", "q", "r", "q"])
    same = torch.full((4,), 0.1)
    for call in calls(op, index, same):
        refuses(
            BatchError, call, what="the advantages of prompt_group 'q' are divided by a deviation of 0",
            required="a standard deviation above 0", found="deviation(reward",
            remedy="epsilon=1e-6",
        )  # fmt: skip
    op, index = made(exact)  # p is one row alone
    for call in calls(op, index, R):
        refuses(BatchError, call, what="the advantages of prompt_group 'p' are divided by a deviation of 0")
    tokens = standardised(reward, over=Stratum("batch"), of=token, epsilon=0)
    for call in calls(*made(tokens), torch.ones(4, 3)):
        refuses(BatchError, call, what="the advantages of the batch are divided by a deviation of 0")


def test_a_policy_that_a_reward_formula_reads_is_required():
    op, index = made(FIELD["kl_of_tokens"])
    refuses(
        BatchError, lambda: op.advantages(R, index), what="reads the policy 'old', whose log-probs are missing",
        found="the formula of advantages", remedy="policies={",
    )  # fmt: skip
    given = {"old": ZEROS, "reference": ZEROS}
    refuses(
        BatchError,
        lambda: op.advantages(R, index, policies=given | {"reference": ZEROS[0]}),
        what="policies['reference'] has shape [3]",
    )
    refuses(BatchError, lambda: op.loss(ZEROS, ZEROS, index=index, rewards=R), what="reads the policy 'reference'")
    refuses(ParameterError, lambda: op.advantages(R, index, {"beta": -1}, policies=given), what="'beta'")
    refuses(ParameterError, lambda: op.advantages(R, index, {"gamma": 1}, policies=given), what="no parameter 'gamma'")
    refuses(
        BatchError, lambda: op.advantages(R, index, policies=given | {"old": poked((1, 0), NAN)}),
        what="old_log_probs of token [1, 0] of trajectory 1 is nan",
    )  # fmt: skip
    one, other = (op.advantages(R, index, p, policies=given | {"old": poked((0, 0), 3.0)}) for p in (None, {"beta": 2}))
    assert not torch.equal(one, other)


def test_gates_that_read_the_advantage_accept_rewards():
    """Where one reads the advantage, on what a row lies over too; a gate that reads none is not asked for a formula's."""
    signed = {trajectory: Gate(where(advantage > 0, residual, residual / 2)), token: identity_gate()}
    h = rewarded(centred(reward, over=prompt_group))
    h = h.replace(gates=signed, fibrations=[Fibration(token, trajectory, uniform())], decomposition=log_ratio())
    op = operator(h)
    index = op.index(mask=MASK, **GROUPS)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    a = op.advantages(R, index)
    assert a.tolist() == [-1.5, 0, 0, 1.5]
    one, other = op.gate(x, index, rewards=R), op.gate(x, index, advantages=a)
    assert torch.equal(one, other)
    assert torch.equal(*(torch.autograd.grad(g.sum(), x)[0] for g in (one, other)))
    first, second = op.levels(x, index, rewards=R), op.levels(x, index, advantages=a)
    assert all(torch.equal(v, second.gated[k]) for k, v in first.gated.items())
    flipped = op.gate(x, index, rewards=-R)
    assert not torch.equal(one, flipped)
    refuses(BatchError, lambda: op.gate(x, index, rewards=R, advantages=a), what="rewards and advantages")
    plain, there = made(GRPO)
    assert torch.equal(plain.gate(x, there, rewards=torch.full((4,), NAN)), plain.gate(x, there))


def test_masked_rewards_are_never_read():
    op, index = made(OPO)
    by_token = torch.where(MASK.bool(), 2.0, NAN)
    assert op.advantages(by_token, index).isfinite().all() and op.advantages(R, index)[2] == 0


def test_a_nan_reward_in_a_condition_is_refused(monkeypatch):
    """NaN is not above 0: the advantage would be an innocent -1. On a GPU it is NaN, and so is the loss."""
    op, index = made(where(reward > 0, 1, -1))
    by_token, by_row = poked((0, 1), NAN), torch.tensor([1.0, NAN, 1.0, 1.0])
    for given, whose in (by_token, "token [0, 1] of trajectory 0"), (by_row, "trajectory 1"):
        refuses(BatchError, lambda given=given: op.advantages(given, index), what=f"the reward of {whose} is nan")
    monkeypatch.setattr(devices, "can_sync", lambda device: False)
    assert op.advantages(by_token, index).isnan().nonzero().tolist() == [[0, 1]]
    assert op.advantages(by_row, index).isnan().tolist() == [False, True, False, False]
    assert op.loss(ZEROS, ZEROS, index=index, rewards=by_row).loss.isnan()
    flat, there = made(exact, prompt_group=["q", "q", "r", "q"])
    assert flat.advantages(torch.full((4,), 0.1), there)[[0, 1, 3]].isnan().all()


@pytest.mark.sampled
@pytest.mark.parametrize("backend", [b.name for b in BACKENDS_HERE if b.device == "cpu"])
def test_equal_rewards_have_advantages_of_0(backend):
    """To the bit: 0.1 has no exact sum, and what would be left is divided by an epsilon."""
    for formula in (
        standardised(reward, over=prompt_group, epsilon=1e-12),
        (reward - mean(reward, over=prompt_group)) * 1e9,
    ):
        op = operator(rewarded(formula), backend)
        index = op.index(mask=MASK, prompt_group=["q", "q", "r", "q"], domain=["m"] * 4)
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            same = torch.full((4,), 0.1, dtype=dtype)
            for given in (same, same[:, None].expand(4, 3)):
                assert not op.advantages(given, index).any()
            near = same.double() + torch.tensor([0, 0, 0, 1e-15])
            assert op.advantages(near, index)[[0, 1, 3]].all()
