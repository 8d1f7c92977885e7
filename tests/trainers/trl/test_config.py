"""The loss of a config beside what TRL's own trainer makes of that config, in float64: value and gradient, off policy.

A real GRPOTrainer scores completions and computes its loss. The log-probs of each of its passes, and what vLLM would
return, are random numbers. Gradients are those in the log-probs.
"""

import ast
import dataclasses
import os
import re
from pathlib import Path
from types import SimpleNamespace

os.environ |= {"HF_HUB_OFFLINE": "1"}

import pytest
import torch
import trl
import yaml
from oracles.trl_configs import EVERY, LOSS_TYPES, pairs, with_loss
from recorded_training import dataset, saved, tokenizer
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments
from trl.scripts.grpo import GRPOScriptArguments
from trl.scripts.utils import DatasetMixtureConfig
from trl.trainer.utils import split_tensor_dict

import fibration
from fibration.configs.trl_options import DEFAULTS, HARMLESS
from fibration.errors import SpecError
from fibration.trainers.trl import hierarchy_of

BOUND = 1e-9
ROWS, WIDTH, FIRST = 8, 7, 3  # words of the vocabulary begin at 3; 1 ends a completion
LENGTHS = (7, 1, 4, 6, 3, 7, 2, 5)
REWARDS = ((1.0, 0.25, 0.5, 0.0, 0.75, 0.125, 1.0, 0.5), (0.5, 1.5, 0.0, 2.0, 0.25, 1.0, 1.0, 0.75))


@pytest.fixture(autouse=True)
def _in_float64():
    """TRL makes rewards, and temperatures of two numbers, in torch's default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(saved(tmp_path_factory.mktemp("model"), torch.float64))


def batch(seed):
    """Log-probs of four policies `[rows, width]`, off policy on both sides of usual bounds, entropies and a mask."""
    draw = torch.Generator().manual_seed(seed)

    def normal(size, *shape):
        return size * torch.randn(*shape, generator=draw)

    old = -torch.rand(ROWS, WIDTH, generator=draw) * 3 - 0.1
    near = {
        "current": old + normal(0.25, ROWS, WIDTH) + normal(0.15, ROWS, 1),
        "rollout": old + normal(0.15, ROWS, WIDTH) + normal(0.05, ROWS, 1),
        "reference": old + normal(0.4, ROWS, WIDTH),
    }
    mask = torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]
    entropies = torch.rand(ROWS, WIDTH, generator=draw).float().double()  # TRL takes quantiles in float32
    found = {name: values.clamp(max=-1e-3) for name, values in near.items()}
    still = torch.where(mask, (found["current"] - old).abs(), 9).argmin()
    entropies.view(-1)[still] = 1.0  # the token of most entropy is not clipped
    return SimpleNamespace(**found, old=old, mask=mask, entropy=entropies)


def micro_batch(options):
    """Rows of a micro-batch. Where TRL takes sums or quantiles per micro-batch, the batch is one."""
    whole = options.get("loss_type") == "bnpo" or options.get("top_entropy_quantile", 1) < 1
    return options.get("per_device_train_batch_size", ROWS if whole else 4)


def number_of_rewards(options):
    return len(options.get("reward_weights") or options.get("reward_funcs") or REWARDS[:1])


def theirs(options, b, model, folder, truncated=()):
    """TRL's loss over all micro-batches of a step, and its gradient in the log-probs of the policy."""
    rows = micro_batch(options)
    usual = dict(
        num_generations=4, num_iterations=2, gradient_accumulation_steps=ROWS // rows, max_completion_length=WIDTH
    )
    usual |= dict(use_cpu=True, bf16=False, report_to=[], disable_tqdm=True, per_device_train_batch_size=rows)
    mine = {k: v for k, v in options.items() if k not in ("use_vllm", "reward_funcs")}
    args = GRPOConfig(str(folder), **{**usual, **mine, "beta": float(mine.get("beta", 0))})
    functions = [lambda prompts, k=k, **_: list(REWARDS[k]) for k in range(number_of_rewards(options))]
    trainer = GRPOTrainer(model, functions, args, dataset(8), processing_class=tokenizer())
    trainer.use_vllm = options.get("use_vllm", False)  # without an engine
    ids = [[FIRST + row] * (n - 1) + [FIRST + row if row in truncated else 1] for row, n in enumerate(LENGTHS)]
    sampled = [b.rollout[row, :n].tolist() for row, n in enumerate(LENGTHS)] if trainer.use_vllm else None
    trainer._generate = lambda prompts: (
        [[FIRST + row] for row in range(ROWS)], ids, None, [""] * ROWS, sampled, {}, None, None,
    )  # fmt: skip
    log_prob = b.current.clone().requires_grad_()

    def scores(trained, input_ids, *_, **__):
        at = input_ids[:, 0] - FIRST  # a prompt is one word, the row's
        if trained is trainer.ref_model:
            values = b.reference
        else:
            values = log_prob if torch.is_grad_enabled() else b.old
        return values[at], b.entropy[at], None

    trainer._get_per_token_logps_and_entropies = scores
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = ROWS // rows
    made = trainer._generate_and_score_completions([{"prompt": f"w{row}"} for row in range(ROWS)])
    parts = split_tensor_dict(made, ROWS // rows)
    loss = sum(trainer._compute_loss(trainer.model, part) for part in parts)
    (slope,) = torch.autograd.grad(loss, log_prob)
    return float(loss.detach()), slope


def reward_of(options, hierarchy):
    """What `around` calls `reward`."""
    values = torch.tensor(REWARDS[: number_of_rewards(options)])
    if options.get("multi_objective_aggregation") == "normalize_then_sum" and "prompt_group" not in str(
        hierarchy.advantages
    ):
        grouped = values.view(-1, 2, 4)
        spread = grouped.std(-1, keepdim=True) + 1e-4
        values = ((grouped - grouped.mean(-1, keepdim=True)) / spread).view(-1, ROWS)
    weights = torch.tensor([float(w) for w in options.get("reward_weights") or [1.0] * len(values)])
    if (
        "prompt_group" in str(hierarchy.advantages)
        and options.get("multi_objective_aggregation") == "normalize_then_sum"
    ):
        weights = torch.ones(1)  # the formula has the weight
    return (weights[:, None] * values).sum(0)


def ours(options, b, mask=None, advantages=None):
    """The same of the hierarchy. `advantages`: in the place of rewards."""
    hierarchy = hierarchy_of({"max_completion_length": WIDTH, **options}).hierarchy
    if advantages is not None:
        hierarchy = hierarchy.replace(
            advantages=None, gives_up={k: v for k, v in hierarchy.gives_up.items() if k != "baseline"}
        )
    op = fibration.compile(hierarchy, backend="torch")
    mask = b.mask if mask is None else mask
    more = {"attributes": {"entropy": b.entropy}} if "entropy" in hierarchy.attributes else {}
    groups = torch.arange(ROWS) // options.get("num_generations", 4)
    index = op.index(mask=mask, prompt_group=groups, **more)
    named = {name: getattr(b, name) for name in hierarchy.policies if name in ("rollout", "reference")}
    log_prob = b.current.clone().requires_grad_()
    made = {"rewards": reward_of(options, hierarchy)} if advantages is None else {"advantages": advantages}
    loss = op.loss(log_prob, b.old, index=index, policies=named, **made).loss
    loss.backward()
    return float(loss.detach()), log_prob.grad


def assert_same(found, expected, factor=1.0):
    (loss, slope), (their_loss, their_slope) = found, expected
    assert their_slope.abs().max() > 1e-6, "nothing is trained"
    assert loss == pytest.approx(factor * their_loss, rel=BOUND, abs=BOUND)
    assert (slope - factor * their_slope).abs().max() <= BOUND * factor * their_slope.abs().max()


CASES = {name: with_loss(name, options) for name, options in EVERY.items()} | pairs(40)


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_the_loss_of_a_config_is_trls(options, model, tmp_path):
    for seed in range(2):
        b = batch(seed)
        assert_same(ours(options, b), theirs(options, b, model, tmp_path))


# ---------------------------------------------------------------- what `around` says


@pytest.mark.parametrize("kind", LOSS_TYPES)
def test_truncated_completions_are_counted_as_around_says(kind, model, tmp_path):
    options = {"loss_type": kind, "mask_truncated_completions": True}
    b, cut = batch(0), (0, 6)
    mask = b.mask.clone()
    mask[list(cut)] = False
    around = " ".join(hierarchy_of(options).around)
    factor = ROWS / (ROWS - len(cut)) if "TRL divides by all rows" in around else 1.0
    assert (factor > 1) is (kind in ("grpo", "sapo", "dr_grpo", "luspo"))
    expected = theirs(options, b, model, tmp_path, truncated=cut)
    grouped = torch.tensor(REWARDS[0]).view(2, 4)
    compared = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
    loss, slope = ours(options, b, mask, compared.view(-1))
    assert_same((loss, torch.where(mask, slope, 0.0)), expected, factor)


def test_bnpo_is_the_mean_of_its_micro_batches(model, tmp_path):
    options = {"loss_type": "bnpo", "per_device_train_batch_size": 4}
    b = batch(0)
    assert "one micro-batch" in " ".join(hierarchy_of(options).around)
    halves = []
    for rows in (slice(0, 4), slice(4, 8)):  # each has whole prompt groups
        mask = torch.zeros_like(b.mask)
        mask[rows] = b.mask[rows]
        loss, slope = ours(options, b, mask)
        halves.append((loss / 2, torch.where(mask, slope, 0.0) / 2))
    found = tuple(one + other for one, other in zip(*halves, strict=True))
    assert_same(found, theirs(options, b, model, tmp_path))


def test_ratios_are_exactly_1_where_around_says_so(model, tmp_path):
    """TRL then takes the log-probs of the pass itself as the old ones."""
    options = {"num_iterations": 1}
    b = batch(0)
    assert "exactly 1" in " ".join(hierarchy_of(options).around)
    expected = theirs(options, b, model, tmp_path)
    b.old = b.current
    assert_same(ours(options, b), expected)


# ---------------------------------------------------------------- names


def test_every_option_of_trl_is_known():
    """Those that are read have TRL's defaults."""
    known = {}
    for made in (GRPOConfig, ModelConfig, ScriptArguments, GRPOScriptArguments, DatasetMixtureConfig):
        known |= {field.name: field.default for field in dataclasses.fields(made)}
    assert known.keys() - DEFAULTS.keys() - HARMLESS == set()
    assert {name: known[name] for name in DEFAULTS} == DEFAULTS


def test_a_config_object_of_trl_is_read(tmp_path):
    made = GRPOConfig(
        str(tmp_path), loss_type="grpo", epsilon_high=0.3, beta=0.1, bf16=False, use_cpu=True, num_generations=4
    )
    found = hierarchy_of(made)
    assert found == hierarchy_of(
        {"loss_type": "grpo", "epsilon_high": 0.3, "beta": 0.1, "num_generations": 4, "steps_per_generation": 1}
    )


def examples():
    """The options of every `GRPOConfig(...)` with options in TRL's own pages and docstrings."""
    for file in Path(trl.__file__).parent.rglob("*"):
        if file.suffix in (".py", ".md") and "GRPOConfig(" in (text := file.read_text()):
            for call in re.findall(r"(?<!Async)GRPOConfig\(([^()]*=[^()]*)\)", text):
                made = ast.parse(f"f({call})", mode="eval").body
                yield {word.arg: ast.literal_eval(word.value) for word in made.keywords}


def test_the_configs_in_trls_own_pages_are_read():
    found = [options for options in examples() if "max_steps" not in options or len(options) > 1]
    assert len(found) >= 2
    for options in found:
        assert hierarchy_of(options).hierarchy.name == "trl_dapo"


def test_a_config_of_accelerate_is_none_of_trl():
    files = sorted((Path(trl.__file__).parent / "accelerate_configs").glob("*.yaml"))
    assert files
    for file in files:
        with pytest.raises(SpecError, match="'compute_environment' is not known"):
            hierarchy_of(yaml.safe_load(file.read_text()))
