"""Generated JAX modules against the float64 interpreter: values, coefficients, gradients, and what is refused.

Compiling a program takes a second or more, so the cases of many hierarchies are sampled.
"""

import ast
import functools
import inspect
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hierarchies.advantage_formulas import BY_ROW, FIELD, rewarded
from oracles.backend_cases import F32, F64, FLOAT64, TORCH, Case, rounded
from oracles.jax_calls import array, jax_call, jax_module, jitted, named, numbers, shipped_module
from oracles.rewards import Rewards
from support import operator, packed, padded, random_hierarchy, refuses, spec, spread_batch
from thorough import ALL

import fibration
from fibration import (
    Gate,
    Stratum,
    after,
    before,
    centred,
    mean,
    policies,
    residual,
    reward,
    sigmoid,
    strata,
    token_log_ratio,
    where,
)
from fibration.errors import BackendError
from fibration.language.hierarchy import adds_up_tokens
from fibration.language.loading import shipped
from fibration.pipeline import generate

BF16 = torch.bfloat16
TAKEN = [name for name in sorted(shipped()) if name not in ("fiberpo_modal", "fiberpo_crossed")]
token, trajectory, prompt_group = strata("token trajectory prompt_group")


def batch_for(h, seed, lengths):
    """Empty rows and rows of one token among others; no prompt group is one row alone."""
    batch = spread_batch(lengths, seed=seed, scale=0.2, per_row=True)
    generator = np.random.default_rng([seed, 5])
    labels = {k: generator.integers(0, 3, batch.tokens).tolist() for k in ("state", "expert")}
    near = np.where(batch.row % 2, 5e-4, 0.2)  # masks of mismatch keep some rows, and drop others
    others = {p: near * generator.normal(size=batch.tokens) for p in h.policies if p not in ("current", "old")}
    per_token = [a.name for a in h.attributes.values() if a.on in h.leaves and a.name != "weight"]  # which it has
    numbers = {name: np.random.default_rng([seed, 7]).uniform(0.5, 2, batch.tokens) for name in per_token}
    labels = {**batch.token_labels, **labels}
    return replace(batch, token_labels=labels, policies=others, attributes={**batch.attributes, **numbers})


@functools.cache
def drawn(h, dtype, seed, lengths=(3, 1, 0, 4, 2, 5, 1, 6)):
    """A batch whose log-probs and advantages are numbers of one precision."""
    batch = batch_for(h, seed, lengths)
    old = rounded(np.random.default_rng([seed, 11]).uniform(-3, -0.01, batch.tokens), dtype)
    others = {name: rounded(old + values, dtype) for name, values in batch.policies.items()}
    batch = replace(batch, advantages=rounded(batch.advantages, dtype), policies=others)
    return Case(h, batch.with_x(rounded(old + batch.x, dtype) - old), old, dtype, seed)


def holds(h, dtype, kind, seed=0):
    """J and the coefficients of a hierarchy are the interpreter's, to 1e-12 in float64 and 1e-6 in float32."""
    c = drawn(h, dtype, seed)
    layout = c.layout(TORCH, "packed" if kind == "packed" else "padded")
    value, found, whole = jax_call(c, layout, kind)
    assert whole.dtype == (np.float64 if dtype == F64 else np.float32) and whole.shape == layout.shape
    under_mask = np.ones(whole.size, bool)
    under_mask[layout.slots] = False
    assert not whole.reshape(-1)[under_mask].any()
    expected = c.bounds(layout, FLOAT64).run("objective")
    coefficients, objective = (expected[k].value for k in ("coefficients", "objective"))
    assert coefficients.any() or h.name.startswith("random")
    allowed = 1e-12 if dtype == F64 else 1e-6
    size = max(np.abs(coefficients).max(), np.abs(c.batch.advantages).max() / c.batch.tokens)
    assert np.abs(found - coefficients).max() <= allowed * size
    assert abs(value - objective[0]) <= allowed * max(abs(objective[0]), size * c.batch.tokens)


KINDS = [(F64, "padded"), (F32, "packed"), (F64, "segments"), (BF16, "padded"), (F64, "packed"), (F32, "segments")]


def kinds_of(number):
    """One case in float64, and one in a narrow precision: all kinds in turn."""
    return KINDS if ALL else [KINDS[2 * (number + k) % 6 + k] for k in range(2)]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "dtype", "kind"), [(n, *kind) for i, n in enumerate(TAKEN) for kind in kinds_of(i)], ids=str
)
def test_shipped_losses_equal_the_interpreter(name, dtype, kind):
    """NaN and infinity under the mask."""
    h = spec(name)
    holds(h.replace(advantages=None) if h.attributes else h, dtype, kind)  # attributes of rewards alone


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(30))
def test_random_chains_equal_the_interpreter(seed):
    """Attributes and their totals, turns, every kind of kernel and gate."""
    holds(random_hierarchy(seed), F64, ("padded", "packed", "segments")[seed % 3], seed)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["grpo", "gspo", "fiberpo_domain", "ctpo", "kl_cov"])
def test_rows_of_one_token_equal_the_interpreter(name):
    h = spec(name)
    c = drawn(h, F64, 0, (1,) * 6)
    for kind in ("padded", "packed"):
        layout = c.layout(TORCH, kind)
        value, found, _ = jax_call(c, layout, kind)
        expected = c.bounds(layout, FLOAT64).run("objective")
        expected["coefficients"].check(found, F64, "coefficients")
        expected["objective"].check([value], F64, "objective")


# ---------------------------------------------------------------- the loss and its gradient


def grpo_case(dtype=F64, **changes):
    c = drawn(spec("grpo"), dtype, 0)
    return replace(c, **changes), c.layout(TORCH, "padded")


@pytest.mark.parametrize("dtype", [F64, BF16], ids=str)
def test_the_gradient_of_the_loss_is_that_of_the_coefficients(dtype):
    import jax

    (c, layout), m = grpo_case(dtype), shipped_module("grpo")

    @jax.jit
    def everything(now, old, advantages, mask):
        value, coefficients = m.value_and_coefficients(now, old, advantages, mask=mask)
        loss = lambda x, y, a: 3 * m.loss(x, y, a, mask=mask)  # noqa: E731
        aux = jax.grad(lambda x: m.value_and_coefficients(x, old, advantages, mask=mask), has_aux=True)(now)[0]
        return value, coefficients, jax.value_and_grad(loss, (0, 1, 2))(now, old, advantages), aux

    with jax.enable_x64(dtype == F64):
        mask = named(c.hierarchy, c.batch, layout, "padded", ())["mask"]
        now = array(c.tensors(layout)[0])
        value, coefficients, (loss, gradients), aux = everything(*map(array, c.tensors(layout)), mask)
        assert gradients[0].dtype == now.dtype and float(loss) == pytest.approx(-3 * float(value), rel=1e-6)
        assert (gradients[0] == (-3 * coefficients).astype(now.dtype)).all()
        assert not any(g.any() for g in gradients[1:])
        assert (aux == coefficients.astype(now.dtype)).all()


def test_long_sums_have_few_roundings_in_float32():
    """A row's mean log ratio decides what `gspo` clips. One after the other, 2^14 numbers have thousands of roundings."""
    import jax

    m = shipped_module("gspo")
    x = np.random.default_rng(0).uniform(0.1, 1, (2, 2**14)).astype(np.float32)
    rows = np.repeat([0, 1], 2**14)

    @jax.jit
    def sums(x, rows):
        padded = m.Layout("token", "trajectory", (2, 2**14), None, None, None, {})
        packed = m.Layout("token", "trajectory", (2**15,), None, rows, 2, {"group": (rows, 2, "token")})
        sorted_by = [(padded, "trajectory"), (packed, "trajectory"), (packed, "group")]
        return [m.push(x.reshape(-1), at.fibre("token", over)) for at, over in sorted_by]

    for found in sums(x, rows):
        assert np.asarray(found, np.float64) == pytest.approx(x.astype(np.float64).sum(1), rel=64 * 2.0**-24)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["padded", "packed", "group"])
def test_sums_in_order_and_quantiles_skip_masked_tokens(kind):
    """Against plain loops; rows with holes, an empty row, and groups of tokens in any order."""
    import jax
    import jax.numpy as jnp

    scans, quantiles = shipped_module("ctpo"), shipped_module("kl_cov")
    generator = np.random.default_rng(3)
    x, mask = generator.normal(size=(4, 9)), generator.random((4, 9)) < 0.6
    mask[2] = False
    row = np.repeat(np.arange(4), 9)
    group = generator.integers(0, 3, 36)
    over, parent, targets = ("group", group, 3) if kind == "group" else ("trajectory", row, 4)

    @jax.jit
    def results(x, mask, row, group):
        at = [
            m.Layout("token", "trajectory", (4, 9), mask, None, None, {"group": (group.reshape(4, 9), 3, "token")})
            if kind != "packed"
            else m.Layout("token", "trajectory", (36,), None, jnp.where(mask.reshape(-1), row, -1), 4, {})
            for m in (scans, quantiles)
        ]
        fibres = [a.fibre("token", over) for a in at]
        ways = [scans.scan(x.reshape(-1), fibres[0], jnp.full(1, 0.5), forward) for forward in (True, False)]
        return *ways, quantiles.quantile(x.reshape(-1), fibres[1], jnp.full(targets, 0.3))

    with jax.enable_x64(True):
        before, after, found = map(np.asarray, results(x, mask, row, group))
    for b in range(targets):
        tokens = np.flatnonzero(mask.reshape(-1) & (parent == b))
        values = x.reshape(-1)[tokens]
        assert found[b] == pytest.approx(np.quantile(values, 0.3) if len(tokens) else 0, rel=1e-14)
        for k, token in enumerate(tokens):
            earlier = sum(0.5 ** (k - i) * values[i] for i in range(k))
            later = sum(0.5 ** (i - k) * values[i] for i in range(k + 1, len(tokens)))
            assert (before[token], after[token]) == pytest.approx((earlier, later), rel=1e-13)


# ---------------------------------------------------------------- inputs that break a rule


@pytest.mark.parametrize("what", ["log_prob", "advantage"])
def test_what_is_not_finite_makes_the_objective_nan(what):
    (c, layout), m = grpo_case(F32), shipped_module("grpo")
    now, old, advantages = map(array, c.tensors(layout))
    given = named(c.hierarchy, c.batch, layout, "padded", ())
    row, place = divmod(int(layout.slots[0]), layout.shape[1])
    if what == "log_prob":
        now = now.at[row, place].set(np.inf)
    else:
        advantages = advantages.at[row].set(np.nan)
    value, coefficients = jitted(m.value_and_coefficients)(now, old, advantages, **given)
    assert np.isnan(value)
    lost = np.isnan(coefficients)
    assert lost[row, place] and not np.delete(np.asarray(lost), row, 0).any()


@functools.cache
def labels_check():
    import jax

    m = shipped_module("grpo")

    @jax.jit
    def is_sound(segments, group, domain):
        labels = {"group": (group, 2, "trajectory"), "domain": (domain, 2, "trajectory")}
        at = m.Layout("token", "trajectory", (4,), None, segments, 3, labels)
        at.fibre("group", "domain")
        return at.result(1.0, "batch", "float32"), at.result(1.0, "token", "float32")

    return is_sound


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("what", "change"),
    {
        "a group beyond the number": {"group": [0, 1, 2]},
        "a group below 0": {"group": [0, -1, 1]},
        "a group of two domains": {"domain": [0, 1, 1]},
        "rows in another order": {"segments": [1, 0, -1, 2]},
        "rows beyond the number": {"segments": [0, 1, -1, 3]},
        "nothing": {},
    }.items(),
)  # fmt: skip
def test_labels_that_break_a_rule_are_noticed(what, change):
    good = {"segments": [0, 1, -1, 2], "group": [0, 0, 1], "domain": [1, 1, 0]}
    value, tokens = labels_check()(**{k: np.array(v) for k, v in {**good, **change}.items()})
    sound = what == "nothing"
    assert np.isnan(value) != sound and np.isnan(tokens).all() != sound
    assert not sound or tokens.tolist() == [1, 1, 0, 1]


def test_absent_rows_need_no_sound_label():
    h = spec("attenuated_group")
    c = drawn(h, F64, 0)
    layout = c.layout(TORCH, "padded")
    groups = numbers(c.batch.labels["prompt_group"])
    absent = np.array(c.batch.lengths) == 0
    of = lambda g: jax_call(c, layout, "padded", prompt_group=g)[1]  # noqa: E731
    assert np.array_equal(of(groups), of(np.where(absent, -7, groups)))
    assert np.isnan(of(np.where(absent, groups, -7))).all()


def test_shapes_and_dtypes_that_do_not_fit_are_errors_in_words():
    import jax

    m, x = shipped_module("grpo"), np.full((2, 3), -1.0, np.float32)
    good = {"log_probs": x, "old_log_probs": x, "advantages": np.ones(2), "mask": np.ones((2, 3), bool)}
    for change, words in (
        ({"old_log_probs": x[:1]}, "old_log_probs has shape"),
        ({"mask": np.ones(3)}, "mask has shape"),
        ({"old_log_probs": np.ones((2, 3), int)}, "old_log_probs is int"),
        ({"advantages": np.ones(3)}, "one per trajectory"),
        ({"epsilon_low": np.ones(2)}, "epsilon_low has shape"),
        ({"segments": np.zeros((2, 3), int)}, "n_trajectory"),
        ({"n_trajectory": 5}, "segments and n_trajectory"),
        ({"segments": np.zeros((2, 3)), "n_trajectory": 2}, "segments is float.*: pass whole numbers"),
    ):
        with pytest.raises(ValueError, match=words):
            jax.eval_shape(lambda given=change: m.value_and_coefficients(**{**good, **given}))


def test_a_shape_with_two_readings_is_decided_by_the_values():
    """As many packed tokens as rows: advantages are NaN where per token and per row differ."""
    import jax.numpy as jnp

    m, x = shipped_module("reinforce"), jnp.full(3, -1.0)
    given = {"segments": np.array([0, 0, 2]), "n_trajectory": 3}
    call = jitted(m.value_and_coefficients)
    value, coefficients = call(x, x, np.array([1.0, 1.0, 3.0]), **given)
    assert coefficients.tolist() == pytest.approx([1 / 3, 1 / 3, 1]) and float(value) == pytest.approx(-5 / 3)
    assert np.isnan(call(x, x, np.array([1.0, 2.0, 3.0]), **given)[0])


# ---------------------------------------------------------------- advantages from rewards


@pytest.mark.sampled
@pytest.mark.parametrize("name", FIELD)
def test_advantages_from_rewards_equal_fractions(name):
    import jax

    h, batch = rewarded(FIELD[name]), spread_batch((3, 1, 0, 4, 2, 5, 1, 2))
    generator = np.random.default_rng(1)
    rewards = generator.normal(size=len(batch.lengths))
    probs = {p: -generator.uniform(0.1, 2, batch.tokens) for p in ("old", "reference")}
    expected = Rewards(h, batch, rewards[batch.row], probs).advantages()
    function = jax_module(h).advantages_from_rewards
    for make, kind in ((packed, "packed"), (padded, "padded")):
        layout = make(operator(h, "torch"), batch)
        tensors = {f"{p}_log_probs": layout.tensor(v).numpy() for p, v in probs.items() if p in h.policies}
        given = named(h, batch, layout, kind, inspect.signature(function).parameters)
        of_tokens = layout.tensor(rewards[batch.row]).numpy()
        with jax.enable_x64(True):
            taken = of_tokens if adds_up_tokens(h) else rewards
            by_row = np.asarray(jitted(function)(rewards=taken, **tensors, **given))
        found = by_row[batch.row] if name in BY_ROW else by_row.reshape(-1)[layout.slots]
        assert np.abs(found - expected).max() <= 1e-13 * np.abs(expected).max(initial=1)


def test_a_formula_that_adds_up_rewards_takes_none_of_rows():
    """Repeated at each token, a row's reward would count once per token."""
    to_go = reward + after(reward, over=trajectory)
    h = spec("dapo").replace(
        name="to_go", groups=[prompt_group], advantages=centred(to_go, over=prompt_group, of=token)
    )
    function, groups = jitted(jax_module(h).advantages_from_rewards), np.array([0, 0])
    found = function(np.array([[0.0, 1.0], [0.0, 0.0]]), prompt_group=groups)
    assert found.tolist() == [[0.5, 0.5], [-0.5, -0.5]]
    with pytest.raises(ValueError, match=r"rewards has shape \(2,\): pass shape \(2, 2\), one per token") as refused:
        function(np.array([1.0, 2.0]), mask=np.ones((2, 2), bool), prompt_group=groups)
    assert "one per trajectory" not in str(refused.value)


def test_advantages_from_rewards_need_a_mask_only_where_nothing_else_has_the_shape():
    """Packed tokens have it by their segments, rewards per token by their own shape."""
    function = jitted(shipped_module("grpo_rewards").advantages_from_rewards)
    rewards, groups = np.array([1.0, 0.0, 1.0, 1.0]), np.array([0, 0, 1, 1])
    wanted = function(rewards, mask=np.ones((4, 3), bool), prompt_group=groups).tolist()
    assert wanted == pytest.approx([0.7070, -0.7070, 0, 0], abs=1e-3)
    packed = function(rewards, segments=np.repeat(np.arange(4), 3), n_trajectory=4, prompt_group=groups)
    assert packed.tolist() == wanted == function(np.repeat(rewards[:, None], 3, 1), prompt_group=groups).tolist()
    with pytest.raises(ValueError, match=r"shape \(4,\): pass a mask .*\[trajectory, tokens\], or segments and n_traj"):
        function(rewards, prompt_group=groups)


# ---------------------------------------------------------------- what is written, and what is refused


def imported(source):
    found = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import | ast.ImportFrom)]
    return {a.name for n in found if isinstance(n, ast.Import) for a in n.names} | {
        n.module for n in found if isinstance(n, ast.ImportFrom)
    }


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["grpo_k3", "ctpo", "kl_cov"])
def test_a_module_imports_jax_alone(name):
    wanted = {"__future__", "math", "typing", "jax", "jax.numpy"}
    assert imported(generate(spec(name), "jax").source) == wanted


def test_the_library_imports_jax_in_the_text_of_modules_alone():
    package = Path(fibration.__file__).parent
    files = [*package.rglob("*.py"), *(package / "backends").rglob("*.py")]  # the second may be a link
    may = [p for p in files if re.search(r"^\s*(import|from) jax\b", p.read_text(), re.MULTILINE)]
    users = {p for p in may if any(m.split(".")[0] == "jax" for m in imported(p.read_text()))}
    assert {p.relative_to(package).as_posix() for p in users} == {"backends/jax/functions.py"}


def test_names_that_the_module_needs_get_numbers():
    gates = {token: Gate(where(residual <= fibration.Parameter("mask", 2.0), residual, fibration.Parameter("lambda_")))}
    (lamp,) = policies("at")
    h = spec("grpo").replace(
        name="named", gates=gates, objective=spec("grpo").objective.weigh(sigmoid(fibration.log_prob(lamp)))
    )
    source = generate(h, "jax").source
    compile(source, "named_jax.py", "exec")
    assert "mask_2: Any = 2.0" in source and "at_log_probs: Any" in source and "lambda_: Any,\n" in source


def across_rows():
    weight = sigmoid(before(token_log_ratio, over=prompt_group))
    return spec("grpo").replace(name="across", groups=[prompt_group], objective=spec("grpo").objective.weigh(weight))


def of_trajectories():
    earlier = before(mean(token_log_ratio, over=trajectory), over=prompt_group, of=trajectory)
    return spec("grpo").replace(
        name="earlier", groups=[prompt_group], objective=spec("grpo").objective.weigh(sigmoid(earlier))
    )


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: spec("fiberpo_modal"), "text_token, image_token"),
        (lambda: spec("fiberpo_crossed"), "orthogonalise='projection'"),
        (across_rows, "a sum in order of token over prompt_group"),
        (of_trajectories, "a sum in order of trajectory over prompt_group"),
        (lambda: spec("reinforce").replace(name="bandit", rows=Stratum("token")), "the leaf"),
    ],
    ids=["leaves", "projection", "order", "elements", "bandit"],
)
def test_what_has_no_jax_module_is_refused(make, found):
    h = make()
    refuses(BackendError, lambda: generate(h, "jax"), what=f"'{h.name}'", found=found, remedy="--backend torch")


def test_there_is_no_operator_of_jax():
    refuses(
        BackendError,
        lambda: fibration.compile(spec("grpo"), "jax"),
        what="tensors of an operator are torch's",
        required="one of auto, torch, c, triton",
        remedy="fibration compile SPEC --backend jax",
    )
