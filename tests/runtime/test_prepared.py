"""The second call of a kind on an index is launched without being checked: its results and its errors are the first's."""

import copy
import gc
import os
import pickle
import re
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from hierarchies.random_quivers import batch_for
from oracles.backend_cases import triton_interprets
from support import OF_EVERY_KIND, message, operator, packed, padded, random_hierarchy, spec, spread_batch
from thorough import ALL, some

import fibration
from fibration import BatchError, FibrationError, ParameterError
from fibration.runtime import inputs
from fibration.runtime.prepared import MANY

LIBRARY = os.path.dirname(fibration.__file__)
BACKENDS = ["c", "torch", *(["triton"] if triton_interprets() else [])]


@pytest.fixture
def checks(monkeypatch):
    """Counts the calls that are checked."""
    made = []
    real = inputs.make_batch
    monkeypatch.setattr(inputs, "make_batch", lambda *given: made.append(1) or real(*given))
    return made


def tensors(layout, batch, dtype=torch.float64):
    old = np.random.default_rng(5).normal(-1.0, 0.3, batch.tokens)
    made = [layout.tensor(v, dtype) for v in (old + batch.x, old)]
    return [*made, layout.tensor(batch.advantages, dtype)]


def more(op, layout, batch):
    given = {name: layout.tensor(values) for name, values in batch.policies.items() if name in op.hierarchy.policies}
    return {"policies": given} if given else {}


def same(one, other):
    assert torch.equal(one.values, other.values)
    assert torch.equal(one.objective, other.objective)
    assert one.objective.dtype == other.objective.dtype and one.objective.shape == other.objective.shape
    assert one.metrics.keys() == other.metrics.keys()
    for name, metric in one.metrics.items():
        assert repr(vars(metric)) == repr(vars(other.metrics[name])), name


def ppo(**options):
    op = operator(spec("ppo"), "c")
    batch = spread_batch()
    layout = packed(op, batch, **options)
    return op, layout.index, tensors(layout, batch)


# ---------------------------------------------------------------- results


MET = [(name, b) for name in [*some(OF_EVERY_KIND, 3), *range(12 if ALL else 3)] for b in BACKENDS]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "backend", "lay_out"),
    [(*met, lay) for i, met in enumerate(MET) for k, lay in enumerate((padded, packed)) if ALL or i // 2 % 2 == k],
)
def test_a_second_call_has_the_bits_of_a_first_one(name, backend, lay_out, checks):
    """With other tensors between the two, which leave nothing behind."""
    hierarchy = random_hierarchy(name) if isinstance(name, int) else spec(name)
    op, batch = operator(hierarchy, backend), batch_for(hierarchy, 3)
    layout, other = lay_out(op, batch), lay_out(op, batch)
    given, options = tensors(layout, batch), more(op, layout, batch)
    if len(given[2].shape) == 1 and len(batch.lengths) == batch.tokens:
        pytest.skip("advantages may be per token or per row, and are compared each time")
    for metrics in (True, False):
        first = op.coefficients(*given, other.index, batch.parameters, metrics=metrics, **options)
        op.coefficients(given[1], given[0], -given[2], layout.index, batch.parameters, metrics=metrics, **options)
        checks.clear()
        second = op.coefficients(*given, layout.index, batch.parameters, metrics=metrics, **options)
        plain = all(type(v) in (int, float) for v in batch.parameters.values())
        assert not (checks and plain)
        same(second, first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["ppo", "gspo"])
def test_every_dtype_is_kept_apart(name, dtype, checks):
    op, batch = operator(spec(name), "c"), spread_batch()
    layout, other = packed(op, batch), packed(op, batch)
    given = tensors(layout, batch, dtype)
    given[2] = torch.randn(len(batch.lengths), dtype=dtype, generator=torch.Generator().manual_seed(1))  # per row
    wide = [t.double() for t in given]
    for _ in range(2):
        kept = op.coefficients(*given, layout.index), op.coefficients(*wide, layout.index)
    checks.clear()
    assert op.coefficients(*wide, layout.index).values.dtype == torch.float64
    # an index keeps one call of a kind, and a call of other dtypes takes its place
    assert len(checks) == 0
    same(kept[0], op.coefficients(*given, other.index))
    same(kept[1], op.coefficients(*wide, other.index))


def test_a_second_loss_has_the_first_ones_gradient(checks):
    op, index, (now, old, advantages) = ppo()
    found = []
    for _ in range(3):
        x = now.clone().requires_grad_()
        loss = op.loss(x, old, advantages, index).loss
        (2 * loss).backward()
        found.append((loss.detach(), x.grad))
    assert len(checks) == 1
    once = op.coefficients(now, old, advantages, index)
    assert torch.equal(found[0][0], -once.objective) and torch.equal(found[0][1], -2 * once.values)
    assert all(torch.equal(a, b) for one in found[1:] for a, b in zip(found[0], one, strict=True))


def test_tensors_that_are_not_contiguous_are_read_right():
    op, batch = operator(spec("grpo"), "c"), spread_batch()
    layout = padded(op, batch)
    given = [t.nan_to_num(nan=-0.5) for t in tensors(layout, batch)]  # NaN read by mistake would be checked again
    first = op.coefficients(*given, layout.index)
    same(op.coefficients(*(t.T.contiguous().T for t in given), layout.index), first)


def test_a_tensor_that_is_not_contiguous_is_copied_once(monkeypatch):
    op, batch = operator(spec("grpo"), "c"), spread_batch()
    layout = padded(op, batch)
    given = [t.T.contiguous().T for t in tensors(layout, batch)]
    copied = []
    real = torch.Tensor.contiguous

    def contiguous(tensor):
        copied.extend([tensor] * (not tensor.is_contiguous()))
        return real(tensor)

    monkeypatch.setattr(torch.Tensor, "contiguous", contiguous)
    for _ in range(2):
        copied.clear()
        op.coefficients(*given, layout.index)
        assert len(copied) == 3


def test_a_second_call_passes_few_files():
    """What docs/backends.md says of a call, whose table names the files in their order."""
    op, index, given = ppo()
    op.coefficients(*given, index, metrics=False)
    files, calls_made = {}, []

    def seen(frame, event, _):
        path = frame.f_code.co_filename
        if event == "call" and f"{LIBRARY}{os.sep}" in path:
            files[os.path.relpath(path, LIBRARY)] = None
            calls_made.append(frame.f_code.co_name)

    sys.setprofile(seen)
    try:
        op.coefficients(*given, index, metrics=False)
    finally:
        sys.setprofile(None)
    table = (Path(__file__).parents[2] / "docs" / "backends.md").read_text().split("passes, in their order:")[1]
    assert list(files) == re.findall(r"^\| `([\w/]+\.py)` \|", table, re.MULTILINE)
    assert len(files) <= 8 and len(calls_made) <= 24


def test_changed_parameters_are_read_again():
    op, index, given = ppo()
    narrow = {"epsilon_low": 0.01}
    values = [op.coefficients(*given, index, narrow).values for _ in range(2)]
    narrow["epsilon_low"] = 0.5
    other = op.coefficients(*given, index, narrow).values
    assert torch.equal(*values) and not torch.equal(values[0], other)
    assert torch.equal(other, op.coefficients(*given, index, {"epsilon_low": 0.5}).values)
    moving = torch.tensor(0.01, dtype=torch.float64)
    assert torch.equal(op.coefficients(*given, index, {"epsilon_low": moving}).values, values[0])
    moving.fill_(0.5)
    assert torch.equal(op.coefficients(*given, index, {"epsilon_low": moving}).values, other)


def test_what_a_caller_changes_in_a_result_does_not_come_back():
    op, index, given = ppo()
    op.coefficients(*given, index)
    first = op.coefficients(*given, index)
    values, objective = first.values.clone(), first.objective.clone()
    first.values.zero_()
    first.objective.zero_()
    second = op.coefficients(*given, index)
    assert torch.equal(second.values, values) and torch.equal(second.objective, objective)


def test_a_micro_batch_reads_frozen_sums_again():
    """`op.freeze` may be called once more for the same step, with other log-probs."""
    op, batch = operator(spec("geometric_mask"), "c"), spread_batch()
    layout = packed(op, batch)
    now, old, a = tensors(layout, batch)
    n = sum(batch.lengths[:3])
    part, rollout = layout.index.micro([0, 1, 2]), {"rollout": old + 0.01}
    op.freeze(old, a, layout.index, policies=rollout)
    given = now[:n], old[:n], a[:n], part
    one = op.coefficients(*given, policies={"rollout": old[:n] + 0.01}).objective
    op.freeze(old, a, layout.index, policies={"rollout": old + torch.linspace(-3, 3, len(old))})
    other = op.coefficients(*given, policies={"rollout": old[:n] + 0.01}).objective
    assert not torch.equal(one, other)


# ---------------------------------------------------------------- errors


def wrong_calls():
    now, old, a, index = "now", "old", "a", "index"
    nan = torch.tensor(float("nan"), dtype=torch.float64)
    return {
        "a tensor too short": lambda g: {now: g[now][:-1]},
        "integers": lambda g: {old: g[old].long()},
        "no tensor": lambda g: {old: g[old].tolist()},
        "another device": lambda g: {now: g[now].to("meta")},
        "old log-probs with a gradient": lambda g: {old: g[old].clone().requires_grad_()},
        "advantages with a gradient": lambda g: {a: g[a].clone().requires_grad_()},
        "no advantages": lambda g: {a: None},
        "advantages of another shape": lambda g: {a: g[a][:4]},
        "NaN log-probs": lambda g: {now: torch.where(torch.arange(len(g[now])) == 3, nan, g[now])},
        "infinite advantages": lambda g: {a: g[a] / 0},
        "sparse": lambda g: {now: g[now].to_sparse()},
        "unknown policy": lambda g: {"policies": {"rolout": g[old]}},
        "policies in a list": lambda g: {"policies": [g[old]]},
        "unknown parameter": lambda g: {"parameters": {"epsilon": 0.1}},
        "parameter out of bounds": lambda g: {"parameters": {"epsilon_low": -1.0}},
        "unknown metric": lambda g: {"metrics": ["levells"]},
        "metrics of no kind": lambda g: {"metrics": 1},
        "no index": lambda g: {index: None},
        "both rewards and advantages": lambda g: {"rewards": g[a]},
    }


@pytest.mark.parametrize("what", wrong_calls())
def test_a_wrong_second_call_raises_what_a_wrong_first_one_does(what):
    op, index, (now, old, a) = ppo()
    given = {"now": now, "old": old, "a": a, "index": index, "parameters": None, "policies": None, "rewards": None}
    given["metrics"] = True
    wrong = given | wrong_calls()[what](given)

    def call(now, old, a, index, parameters, **named):
        return op.coefficients(now, old, a, index, parameters, **named)

    def error(**changed):
        with pytest.raises(FibrationError) as caught:
            call(**wrong | changed)
        return type(caught.value), message(caught.value)

    fresh = {} if wrong["index"] is None else {"index": packed(op, spread_batch()).index}
    expected = error(**fresh)
    call(**given)
    call(**given)
    assert error() == expected
    call(**given)  # and nothing is lost


def test_a_gradient_that_nobody_records_is_no_error():
    op, index, (now, old, a) = ppo()
    op.coefficients(now, old, a, index)
    with torch.no_grad():
        op.coefficients(now, old.requires_grad_(), a, index)
    with pytest.raises(BatchError, match="old_log_probs require grad"):
        op.coefficients(now, old, a, index)


def test_a_second_call_of_another_operators_index_is_refused():
    op, index, given = ppo()
    op.coefficients(*given, index)
    other = operator(spec("grpo"), "c")
    with pytest.raises(BatchError, match="the index was built for 'ppo'"):
        other.coefficients(*given, index)


def test_advantages_with_two_readings_are_compared_each_time():
    op = operator(spec("grpo"), "c")
    index = op.index(offsets=[0, 0, 2, 3])
    now = torch.tensor([0.1, 0.2, 0.3])
    for _ in range(2):
        op.coefficients(now, now * 0, torch.tensor([0.5, 0.5, 0.25]), index)
    with pytest.raises(BatchError, match="may be per token or per row"):
        op.coefficients(now, now * 0, torch.tensor([0.5, 0.25, 0.25]), index)


def test_a_vector_of_advantages_is_checked_each_time():
    """A gate on trajectories reads one advantage per trajectory."""
    op = operator(spec("gspo"), "c")
    index = op.index(offsets=[0, 2, 4])
    now = torch.tensor([0.1, 0.2, 0.3, 0.1])
    for _ in range(2):
        op.coefficients(now, now * 0, torch.tensor([0.5, 0.5, 1.0, 1.0]), index)
    with pytest.raises(BatchError, match="vary within"):
        op.coefficients(now, now * 0, torch.tensor([0.5, 0.5, 1.0, 2.0]), index)
    with pytest.raises(BatchError, match="finite values"):
        op.coefficients(now, now * 0, torch.tensor([0.5, 0.5, 1.0, 1.0]).log() / 0, index)


def test_a_missing_value_of_a_parameter_is_refused_at_a_second_call_too():
    op, index, given = ppo()
    op.coefficients(*given, index)
    with pytest.raises(ParameterError, match="is None"):
        op.coefficients(*given, index, {"epsilon_low": None})


# ---------------------------------------------------------------- what an index keeps


@pytest.mark.sampled
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_index_dies_without_the_garbage_collector(backend):
    """Its tensors may lie on a GPU, and the collector does not know how large they are."""
    op, batch = operator(spec("fiberpo_domain"), backend), spread_batch()
    gc.collect()
    gc.disable()
    try:
        layout = packed(op, batch)
        op.coefficients(*tensors(layout, batch), layout.index)
        op.coefficients(*tensors(layout, batch), layout.index)
        index = weakref.ref(layout.index)
        del layout
        assert index() is None
    finally:
        gc.enable()


def test_an_index_keeps_no_tensor_of_a_call():
    op, index, given = ppo()
    for _ in range(2):
        op.coefficients(*given, index)
    kept = [weakref.ref(t) for t in given]
    given.clear()
    assert [t() for t in kept] == [None] * 3


def test_an_index_keeps_few_kinds_of_calls(checks):
    op, index, given = ppo()
    for i in range(3 * MANY):
        op.coefficients(*given, index, {"epsilon_low": 0.01 * (i + 1)})
    assert len(index.kept("prepared calls", dict)) <= MANY
    checks.clear()
    op.coefficients(*given, index, {"epsilon_low": 0.03 * MANY})
    assert not checks


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda i: pickle.loads(pickle.dumps(i))])
def test_a_copy_of_an_index_checks_its_first_call(copied, checks):
    op, index, given = ppo()
    first = op.coefficients(*given, index)
    checks.clear()
    same(op.coefficients(*given, copied(index)), first)
    assert checks


def test_threads_share_an_index():
    op, index, given = ppo()
    scales = [1.0, 2.0, 3.0, 4.0]
    expected = [op.coefficients(given[0], given[1], given[2] * k, index).values for k in scales]
    wrong = []

    def work(k, values):
        for _ in range(200):
            if not torch.equal(op.coefficients(given[0], given[1], given[2] * k, index).values, values):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(scales, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
