"""Micro-batches of a step, `index.micro(rows)`: their parts of J and of the gradient add up to the whole step's.

A coefficient may depend on rows elsewhere only where `op.coupling` says so. That is tested by moving one row's
log-probs.
"""

import functools

import numpy as np
import pytest
import torch
from hierarchies.random_order import interleaved
from random_steps import RANDOM, SPECS, Step, made
from support import OF_EVERY_KIND, operator, packed, padded, refuses, spec
from thorough import ALL
from thread_ranks import try_on_ranks

from fibration import (
    BatchError,
    HierarchyIndexError,
)

ROUNDING = 1e-13  # of sums in another order, in float64


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(4 if ALL else 2))
@pytest.mark.parametrize("name", [*SPECS, *RANDOM])
def test_a_coefficient_depends_on_coupled_rows_only(name, seed):
    """Rows may reach each other in steps: one shares a domain with a second, and that a modality with a third."""
    step = Step(made(name), seed)
    before = step.coefficients(metrics=False).values
    for part in step.closed():
        if len(part) == len(step.index):
            continue
        for row in part if ALL else part[-1:]:
            new = step.new.clone()
            new[step.places([row])] += 0.3 / max(1, len(step.places([row]))) ** 0.5
            after = step.coefficients(new, metrics=False).values
            others = step.places(sorted(set(range(len(step.index))) - set(part)))
            assert torch.equal(after[others].nan_to_num(7), before[others].nan_to_num(7)), row


@pytest.mark.sampled
@pytest.mark.parametrize("name", [n for n in SPECS if not made(n).coupling.is_row_local])
def test_rows_that_are_reported_as_coupled_are_coupled(name):
    for seed in range(40):
        step = Step(made(name), seed)
        before = step.coefficients(metrics=False).values
        for row in range(len(step.index)):
            new = step.new.clone()
            new[step.places([row])] += 0.3 / max(1, len(step.places([row]))) ** 0.5
            after = step.coefficients(new, metrics=False).values
            others = step.places(sorted(set(range(len(step.index))) - {row}))
            if not torch.equal(after[others].nan_to_num(7), before[others].nan_to_num(7)):
                return
    raise AssertionError("no row moved another one's coefficients")


def check_parts(step, parts):
    new = step.new.clone().requires_grad_()
    step.freeze()
    losses = []
    for rows in parts:
        loss = step.loss(rows, new).loss
        loss.backward()
        losses.append(loss.detach())
    whole = step.coefficients(metrics=False)
    wanted, got = -step.layout.read(whole.values), step.layout.read(new.grad)
    scale = np.abs(wanted).max() + 1e-30
    assert np.abs(got - wanted).max() <= ROUNDING * scale
    assert abs(float(sum(losses)) + float(whole.objective)) <= 1e-12 * (1 + abs(float(whole.objective)))


def ways(number, name):
    """Backends and layouts. CI takes the first: C for every kind of program, torch for losses that differ in formulas."""
    first, other = ("c", "torch") if name in OF_EVERY_KIND else ("torch", "c")
    one, two = (packed, padded)[:: -1 if number % 2 else 1]
    every = [(first, one), (other, two), (first, two), (other, one)]
    return every if ALL else every[:2]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "backend", "layout"), [(name, *way) for i, name in enumerate(SPECS) for way in ways(i, name)]
)
def test_parts_add_up_to_the_whole_step(name, backend, layout):
    step = Step(operator(spec(name), backend), len(name), layout)
    parts = step.closed()
    np.random.default_rng(3).shuffle(parts)
    check_parts(step, parts)
    if len(parts) > 2:  # and any union of them
        check_parts(step, [sorted(parts[0] + parts[2]), parts[1][::-1], *parts[3:]])


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(3 if ALL else 1))
@pytest.mark.parametrize("name", RANDOM)
def test_parts_of_random_hierarchies_add_up_to_the_whole_step(name, seed):
    step = Step(made(name), seed)
    check_parts(step, step.closed())


# ---------------------------------------------------------------- fixed steps

OFFSETS = np.cumsum([0, 3, 1, 4, 2, 5, 3])
N, ROWS = int(OFFSETS[-1]), len(OFFSETS) - 1
GENERATOR = torch.Generator().manual_seed(5)
OLD = -torch.rand(N, generator=GENERATOR, dtype=torch.float64) - 0.1
NEW = OLD + torch.randn(N, generator=GENERATOR, dtype=torch.float64) * 0.4
ROLLOUT = OLD + torch.randn(N, generator=GENERATOR, dtype=torch.float64) * 0.4
A = torch.randn(ROWS, generator=GENERATOR, dtype=torch.float64)
GROUPS = ["a", "b", "a", "b", "c", "c"]
PLACES = np.concatenate([np.arange(n) * 3 + r % 3 for r, n in enumerate(np.diff(OFFSETS))])  # rows are interleaved


def of_rows(tensor, rows):
    return torch.cat([tensor[OFFSETS[r] : OFFSETS[r + 1]] for r in rows]) if rows else tensor[:0]


def labels(op, rows=range(ROWS)):
    wanted = {s.name for s in (*op.hierarchy.strata, *op.hierarchy.groups)}
    given = {"prompt_group": GROUPS, "domain": ["x" if g == "a" else "y" for g in GROUPS]}
    return {k: [v[r] for r in rows] for k, v in given.items() if k in wanted}


def policies(op, rows=range(ROWS)):
    return {"rollout": of_rows(ROLLOUT, list(rows))} if "rollout" in op.hierarchy.policies else None


@pytest.mark.parametrize("name", ["gspo", "geometric_mask", "fiberpo_domain"])
def test_over_ranks_parts_add_up_and_no_rank_waits(name):
    op = operator(spec(name), "torch")
    whole = op.index(offsets=OFFSETS, **labels(op))
    wanted = op.coefficients(NEW, OLD, A, whole, policies=policies(op))
    split = [[0, 2], [], [1, 3, 4, 5]]
    parts = [[[0, 2]], [[]], [[1, 3, 4, 5]] if name == "fiberpo_domain" else [[5, 3], [1, 4]]]

    def on_rank(group):
        rows = split[group.rank]
        offsets = np.cumsum([0, *np.diff(OFFSETS)[rows]])
        index = op.index(offsets=offsets, group=group, **labels(op, rows))
        op.freeze(of_rows(OLD, rows), A[rows], index, policies=policies(op, rows))
        assert index.gradient_scale == 3
        found = []
        for mine in parts[group.rank]:
            part = index.micro([rows.index(r) for r in mine])
            new = of_rows(NEW, mine).requires_grad_()
            loss = op.loss(new, of_rows(OLD, mine), A[mine], part, policies=policies(op, mine)).loss
            loss.backward()
            assert part.gradient_scale == 3
            found.append((mine, float(loss.detach()), new.grad))
        return found

    ran = try_on_ranks(3, on_rank)
    assert not any(ran.errors), ran.errors
    made = [part for of_rank in ran.results for part in of_rank]
    assert sum(loss for _, loss, _ in made) == pytest.approx(-float(wanted.objective), abs=1e-14)
    for rows, _, gradient in made:
        assert torch.allclose(gradient, -of_rows(wanted.values, rows), rtol=0, atol=1e-14)
    collectives = [kind for kind, _ in ran.traffic.sent]
    built = try_on_ranks(3, lambda g: op.index(offsets=np.array([0, 2]), group=g, **labels(op, [0])) and None)
    prologue = 0 if not op.coupling.frozen else len(collectives) - len(built.traffic.sent)
    assert len(collectives) == len(built.traffic.sent) + prologue


def test_a_loss_on_tokens_alone_accepts_pieces_of_a_row_as_micro_batches():
    keys, positions = ["t", "t", "u", "v", "u", "w"], np.arange(N)
    op = operator(spec("grpo"), "torch")
    index = op.index(offsets=OFFSETS, trajectory=keys, positions=positions)
    a = torch.tensor([1.0, 1, -2, 0.5, -2, 1.5], dtype=torch.float64)
    wanted = op.coefficients(NEW, OLD, a, index)
    for rows in ([0, 2], [1], [3, 4, 5]):
        got = op.coefficients(of_rows(NEW, rows), of_rows(OLD, rows), a[rows], index.micro(rows))
        assert torch.allclose(got.values, of_rows(wanted.values, rows), rtol=0, atol=1e-15)
    op = operator(spec("gspo"), "torch")
    index = op.index(offsets=OFFSETS, trajectory=keys, positions=positions)
    op.coefficients(of_rows(NEW, [3, 5]), of_rows(OLD, [3, 5]), a[[3, 5]], index.micro([3, 5]))
    refuses(
        HierarchyIndexError, lambda: index.micro([0, 1]),
        what="a micro-batch has 3 of the 4 tokens of trajectory 't'", required="couples the tokens of a trajectory",
    )  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("backend", ["c", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["grpo", "gspo", "fiberpo", "geometric_mask"])
def test_the_bits_of_coefficients_do_not_depend_on_the_cut(name, dtype, backend):
    op = operator(spec(name), backend)
    index = op.index(offsets=OFFSETS, **labels(op))
    op.freeze(OLD.to(dtype), A, index, policies=policies(op))
    given = [t.to(dtype) for t in (NEW, OLD)]
    wanted = op.coefficients(*given, A.to(dtype), index, policies=policies(op)).values
    for rows in ([0], [5, 1, 2], [4, 3]):
        mine = [of_rows(t, rows) for t in given]
        got = op.coefficients(*mine, A[rows].to(dtype), index.micro(rows), policies=policies(op, rows)).values
        assert torch.equal(got, of_rows(wanted, rows))


def test_an_index_of_some_rows_has_another_normaliser_than_a_micro_batch():
    """Its own counts normalise: the sum of such parts is another loss. The tests above would find that."""
    op = operator(spec("grpo"), "torch")
    index = op.index(offsets=OFFSETS)
    part = op.index(offsets=OFFSETS[:4])
    wanted = op.coefficients(NEW, OLD, A, index).values[: OFFSETS[3]]
    given = NEW[: OFFSETS[3]], OLD[: OFFSETS[3]], A[:3]
    assert torch.allclose(op.coefficients(*given, part).values, wanted * ROWS / 3)
    assert torch.equal(op.coefficients(*given, index.micro(slice(3))).values, wanted)


def test_parameters_per_element_are_those_of_the_whole_step():
    op = operator(spec("fiberpo"), "torch")
    index = op.index(offsets=OFFSETS)
    parameters = {"C_trajectory": dict(enumerate([0.01, 0.5, 0.02, 0.3, 0.04, 0.2]))}
    wanted = op.coefficients(NEW, OLD, A, index, parameters).values
    got = op.coefficients(of_rows(NEW, [5, 0]), of_rows(OLD, [5, 0]), A[[5, 0]], index.micro([5, 0]), parameters).values
    assert torch.equal(got, of_rows(wanted, [5, 0]))


@pytest.mark.parametrize("name", ["grpo", "fiberpo_domain"])
def test_a_micro_batch_of_a_micro_batch_is_one_of_the_step(name):
    op = operator(spec(name), "torch")
    index = op.index(offsets=OFFSETS, **labels(op))
    part = index.micro([5, 3, 1, 4]).micro([1, 2, 0, 3])
    same = index.micro([3, 1, 5, 4])
    assert part.whole is index and part.rows.tolist() == [3, 1, 5, 4]
    given = of_rows(NEW, [3, 1, 5, 4]), of_rows(OLD, [3, 1, 5, 4]), A[[3, 1, 5, 4]]
    assert torch.equal(op.coefficients(*given, part).values, op.coefficients(*given, same).values)
    if name == "fiberpo_domain":
        refuses(HierarchyIndexError, lambda: part.micro([0, 1]), what="tokens of domain 'y'")


def test_positions_order_the_tokens_of_a_micro_batch():
    op = operator(interleaved())
    assert op.coupling.strata == ("prompt_group",)
    index = op.index(offsets=OFFSETS, prompt_group=GROUPS, positions=PLACES)
    wanted = op.coefficients(NEW, OLD, A, index).values
    for rows in ([4, 5], [3, 0, 1, 2]):
        got = op.coefficients(of_rows(NEW, rows), of_rows(OLD, rows), A[rows], index.micro(rows)).values
        assert torch.allclose(got, of_rows(wanted, rows), rtol=0, atol=1e-15)


def test_a_micro_batch_keeps_the_names_of_its_rows():
    index = operator(spec("gspo")).index(offsets=OFFSETS, trajectory=list("uvwxyz"))
    assert index.micro([4, 2]).describe_row(0) == "row 0 (trajectory 'y')"


def test_elements_are_numbered_as_they_first_appear_in_a_micro_batch():
    op = operator(spec("fiberpo_domain"), "torch")
    index = op.index(offsets=OFFSETS, **labels(op))
    assert index.micro([4, 5, 3, 1, 0, 2]).labels["prompt_group"] == ("c", "b", "a")


def test_a_micro_batch_without_tokens_adds_nothing():
    for backend in ("torch", "c"):
        op = operator(spec("gspo"), backend)
        mask = torch.ones(3, 4, dtype=torch.bool)
        mask[1] = False
        index = op.index(mask=mask)
        new = torch.zeros(1, 4, requires_grad=True)
        result = op.loss(new, torch.zeros(1, 4), torch.ones(1), index.micro([1]))
        result.loss.backward()
        assert float(result.loss.detach()) == 0 and not new.grad.any()
        assert op.coefficients(torch.zeros(0, 4), torch.zeros(0, 4), torch.ones(0), index.micro([])).values.numel() == 0


def test_torch_compile_accepts_a_micro_batch():
    op = operator(spec("gspo"), "torch")
    index = op.index(offsets=OFFSETS).micro([1, 4])
    given = of_rows(OLD, [1, 4]), A[[1, 4]], index
    followed = torch.compile(lambda x: op.loss(x, *given).loss, fullgraph=True, backend="aot_eager")
    one, other = (of_rows(NEW, [1, 4]).requires_grad_() for _ in range(2))
    followed(one).backward()
    op.loss(other, *given).loss.backward()
    assert torch.equal(one.grad, other.grad)


# ---------------------------------------------------------------- refusals

REFUSED = {
    "a number": (2, dict(what="rows are an int: 2", required="a slice, or a list", remedy="index.micro([2])")),
    "several dimensions": ((slice(2), 0), dict(what="rows are a tuple")),
    "floats": ([0.0, 1.0], dict(what="rows of shape [2] and dtype float64", required="row numbers below 6")),
    "two dimensions": (torch.zeros(6, 6, dtype=torch.bool), dict(what="rows of shape [6, 6]", required="[6] booleans")),
    "too few booleans": ([True, False], dict(what="2 booleans choose rows")),
    "beyond the end": ([0, 6], dict(what="row 6 does not exist", required="below 6")),
    "before the start": ([-7], dict(what="row -7 does not exist")),
    "twice": ([1, 0, 1], dict(what="row 1 comes 2 times", required="each row in one micro-batch")),
    "a slice beyond the end": (slice(10, 20), dict(what="rows are slice(10, 20, None), and the index has 6", required="slice(a, a) for none")),
    "a slice from the end": (slice(6, 9), dict(what="slice(6, 9, None)")),
    "no row beyond the end": (slice(7, 7), dict(what="slice(7, 7, None)")),
    "a slice from before the start": (slice(-7, 2), dict(what="slice(-7, 2, None)", required="begins in the 6 rows")),
    "a slice that runs backwards": (slice(4, 2), dict(what="slice(4, 2, None)")),
    "a slice that ends before the start": (slice(None, -8), dict(what="slice(None, -8, None)")),
    "a slice in steps that runs forwards": (slice(2, 4, -1), dict(what="slice(2, 4, -1)")),
    "a slice without a step": (slice(0, 2, 0), dict(what="slice step cannot be zero", required="begins in the 6 rows")),
    "a slice of floats": (slice(0.0, 2.0), dict(what="slice(0.0, 2.0, None)")),
}


@pytest.mark.parametrize("which", REFUSED)
def test_wrong_rows_of_a_micro_batch_are_refused(which):
    rows, expected = REFUSED[which]
    whole = operator(spec("fiberpo")).index(offsets=OFFSETS)
    refuses(HierarchyIndexError, lambda: whole.micro(rows), **expected)


def test_every_form_of_rows_is_accepted():
    op = operator(spec("grpo"))
    index = op.index(offsets=OFFSETS)
    forms = [slice(1, 4), [1, 2, -3], range(1, 4), np.array([1, 2, 3], np.int32), torch.tensor([1, 2, 3])]
    forms += [torch.tensor([False, True, True, True, False, False])]
    assert {tuple(index.micro(rows).elements["trajectory"]) for rows in forms} == {(1, 2, 3)}
    slices = [slice(-6, 6), slice(3, 3), slice(6, 6), slice(6, None), slice(-2, None), slice(None, None, -2), slice(4, 0, -3)]
    slices += [slice(4, 8), slice(-6, 99), slice(0, 0), slice(None, 0), slice(-1, -9, -2)]
    assert [index.micro(s).rows.tolist() for s in slices] == [list(range(6))[s] for s in slices]
    assert len(index.micro(slice(2))) == 2 and "a micro-batch of Index('grpo'" in repr(index.micro([0]))


def test_a_micro_batch_that_cuts_a_coupled_element_is_refused_by_name():
    op = operator(spec("fiberpo_domain"))
    index = op.index(offsets=OFFSETS, **labels(op))
    refuses(
        HierarchyIndexError, lambda: index.micro([1, 3]),
        what="a micro-batch has 3 of the 11 tokens of domain 'y'",
        required="all of them: 'fiberpo_domain' couples the rows of a domain",
        remedy="compute op.coefficients(...) of the whole step once",
    )  # fmt: skip
    index.micro([0, 2])


def test_calls_that_need_the_whole_step_are_refused():
    op = operator(spec("geometric_mask"))
    index = op.index(offsets=OFFSETS)
    part = index.micro([0])
    given = of_rows(NEW, [0]), of_rows(OLD, [0]), A[:1], part
    refuses(
        BatchError, lambda: op.loss(*given, policies=policies(op, [0])),
        what="reads sums over batch of the whole step", required="op.freeze(...) once per step", remedy="op.freeze(",
    )  # fmt: skip
    op.freeze(OLD, A, index, {"least": 0.3}, policies=policies(op))
    refuses(
        BatchError, lambda: op.loss(*given, policies=policies(op, [0])),
        what="parameter 'least'", required="the same parameters in a whole step",
    )  # fmt: skip
    op.freeze(OLD, A, index, policies=policies(op))
    result = op.loss(*given, policies=policies(op, [0]))
    assert list(result.scalars()) == ["loss"]
    refuses(BatchError, lambda: result.metrics, what="metrics of a micro-batch", remedy="at the end of the step")
    refuses(
        BatchError,
        lambda: op.loss(*given, policies=policies(op, [0]), metrics="gated_ratio"),
        what="metrics of a micro",
    )
    refuses(BatchError, lambda: op.gate(of_rows(NEW, [0]), part), what="op.gate of a micro-batch")
    refuses(BatchError, lambda: op.freeze(OLD, A, part, policies=policies(op)), what="op.freeze of a micro-batch")
    moving = OLD.clone().requires_grad_()
    refuses(BatchError, lambda: op.freeze(moving, A, index, policies=policies(op)), what="old_log_probs require grad")
    rewarded = operator(spec("grpo_rewards"))
    index = rewarded.index(offsets=OFFSETS, **labels(rewarded))
    call = functools.partial(rewarded.loss, of_rows(NEW, [0]), of_rows(OLD, [0]), index=index.micro([0]), rewards=A[:1])
    refuses(BatchError, call, what="rewards of a micro-batch", remedy="op.advantages(rewards, index)")
