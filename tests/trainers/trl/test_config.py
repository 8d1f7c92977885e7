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
from oracles.trl_configs import EVERY, LOSS_TYPES, pairs, random_config, with_loss
from recorded_training import dataset, saved, tokenizer
from transformers import GenerationConfig
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments
from trl.scripts.grpo import GRPOScriptArguments
from trl.scripts.utils import DatasetMixtureConfig
from trl.trainer.callbacks import SyncRefModelCallback
from trl.trainer.utils import split_tensor_dict

import fibration
from fibration.configs.sampling import SETTINGS
from fibration.configs.trl import TABLE
from fibration.errors import SpecError
from fibration.trainers.trl import hierarchy_of

DEFAULTS, HARMLESS = TABLE.defaults, TABLE.harmless
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


def theirs(options, b, model, folder, truncated=(), router=None):
    """TRL's loss over all micro-batches of a step, and its gradient in the log-probs of the policy.

    `router`: the coefficient of a mixture of experts, whose load balancing loss is the row's number, averaged.
    """
    rows = micro_batch(options)
    usual = dict(
        num_generations=4, num_iterations=2, gradient_accumulation_steps=ROWS // rows, max_completion_length=WIDTH
    )
    usual |= dict(use_cpu=True, bf16=False, report_to=[], disable_tqdm=True, per_device_train_batch_size=rows)
    mine = {k: v for k, v in options.items() if k not in ("use_vllm", "reward_funcs")}
    numbers = {name: float(mine[name]) for name in ("beta", "epsilon", "delta") if mine.get(name) is not None}
    args = GRPOConfig(str(folder), **{**usual, **mine, **numbers})
    functions = [lambda prompts, k=k, **_: list(REWARDS[k]) for k in range(number_of_rewards(options))]
    trainer = GRPOTrainer(model, functions, args, dataset(8), processing_class=tokenizer())
    trainer.use_vllm = options.get("use_vllm", False)  # without an engine
    trainer.aux_loss_enabled, trainer.router_aux_loss_coef = router is not None, router
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
        return values[at], b.entropy[at], at.double().mean()

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
        grouped = values.view(len(values), -1, options.get("num_generations", 4))
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


def assert_same(found, expected, factor=1.0, least=1e-6):
    (loss, slope), (their_loss, their_slope) = found, expected
    assert their_slope.abs().max() > least, "nothing is trained"
    assert loss == pytest.approx(factor * their_loss, rel=BOUND, abs=BOUND)
    assert (slope - factor * their_slope).abs().max() <= BOUND * factor * their_slope.abs().max()


CASES = {name: with_loss(name, options) for name, options in EVERY.items()} | pairs(40)


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_the_loss_of_a_config_is_trls(options, model, tmp_path):
    least = 0 if options.get("loss_type") == "vespo" else 1e-6  # whose weight falls with an answer's ratio, to 1e-16
    for seed in range(2):
        b = batch(seed)
        assert_same(ours(options, b), theirs(options, b, model, tmp_path), least=least)


def outcome(seed, model, folder):
    """What becomes of a random config: "same", "other", or who refuses it and why."""
    options, b = random_config(seed), batch(seed)
    try:
        found = hierarchy_of({**options})
    except SpecError as error:
        return f"refused: {error.what}"
    try:
        loss, slope = theirs(options, b, model, folder)
    except (ValueError, TypeError, RuntimeError) as error:
        return f"TRL refuses: {error}"
    if "exactly 1" in " ".join(found.around):
        b.old = b.current
    mine, mine_slope = ours(options, b)
    near = BOUND * (slope.abs().max() + 1e-6)
    is_same = mine == pytest.approx(loss, rel=BOUND, abs=BOUND) and (mine_slope - slope).abs().max() <= near
    return "same" if is_same else f"other: {options}, {mine} for {loss}"


@pytest.mark.parametrize("part", range(10))
def test_random_configs_train_what_trl_trains_or_are_refused(part, model, tmp_path):
    """No LawError, and no silent difference."""
    found = [outcome(seed, model, tmp_path) for seed in range(30 * part, 30 * part + 30)]
    assert not [each for each in found if each.startswith("other")]
    assert found.count("same") > 15, found


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


@pytest.mark.parametrize("kind", ["grpo", "dapo", "dr_grpo", "luspo"])
@pytest.mark.parametrize("share", [1.0, 0.4])
def test_the_entropy_bonus_is_that_of_around(kind, share, model, tmp_path):
    """A mean over the tokens of each micro-batch, whatever the loss divides by."""
    plain = {"loss_type": kind, "importance_sampling_level": "sequence" if kind == "luspo" else "token"}
    plain |= {"top_entropy_quantile": share}
    b = batch(0)
    said = " ".join(hierarchy_of({**plain, "entropy_coef": 0.3}).around)
    assert "minus 0.3 times the mean over the tokens of each micro-batch" in said
    assert ("that top_entropy_quantile keeps" in said) is (share < 1)
    (with_bonus, _), (without, _) = (
        theirs({**plain, **more}, b, model, tmp_path) for more in ({"entropy_coef": 0.3}, {})
    )
    kept = b.mask & (b.entropy >= b.entropy[b.mask].float().quantile(1 - share).double())
    rows = micro_batch(plain)
    means = [b.entropy[k : k + rows][kept[k : k + rows]].mean() for k in range(0, ROWS, rows)]
    assert with_bonus - without == pytest.approx(-0.3 * float(sum(means)) / len(means), rel=1e-6)


@pytest.mark.parametrize("kind", ["grpo", "dapo", "bnpo"])
def test_the_loss_of_the_router_is_that_of_around(kind, model, tmp_path):
    options = {"loss_type": kind}
    b = batch(0)
    assert "router_aux_loss_coef=0.2: plus that times" in " ".join(
        hierarchy_of({**options, "router_aux_loss_coef": 0.2}).around
    )
    (with_router, _), (without, _) = (theirs(options, b, model, tmp_path, router=r) for r in (0.2, None))
    assert with_router - without == pytest.approx(0.2 * (ROWS - 1) / 2)  # the mean of 0, 1, ..., of rows of one size


def test_the_reference_model_moves_as_around_says():
    (said,) = [
        s for s in hierarchy_of({"beta": 0.1, "sync_ref_model": True, "num_iterations": 2}).around if "sync" in s
    ]
    steps, share = map(float, re.search(r"every (\d+) steps the reference model moves .* by ([\d.]+)", said).groups())
    policy, reference = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    before, after = float(reference.weight), float(policy.weight)
    args = SimpleNamespace(**{name: DEFAULTS[name] for name in ("ref_model_sync_steps", "ref_model_mixup_alpha")})
    callback = SyncRefModelCallback(ref_model=reference, accelerator=None)
    for step in range(1, int(steps) + 1):
        assert float(reference.weight) == before
        callback.on_step_end(args, SimpleNamespace(global_step=step), None, model=policy)
    assert float(reference.weight) == pytest.approx(before + share * (after - before))


@pytest.mark.parametrize(
    "counts", [(1, 1, 1), (2, 1, 1), (1, 4, 1), (1, 4, 2), (3, 2, 2), (3, 1, 2), (7, 1, 4), (1, 2, 8), (2, 5, 3)]
)
def test_a_generation_takes_the_steps_that_around_says(counts, model, tmp_path):
    """Micro-batches in turn, as TRL's trainer prepares them: how old is what they train on?"""
    names = ("num_iterations", "steps_per_generation", "gradient_accumulation_steps")
    options = {**dict(zip(names, counts, strict=True)), "num_generations": 4, "per_device_train_batch_size": 4}
    args = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to=[], **options)
    trainer = GRPOTrainer(
        model, lambda prompts, **_: [0.0] * len(prompts), args, dataset(8), processing_class=tokenizer()
    )
    trainer.model.train()
    rows, accumulation = 4 * args.steps_per_generation, args.gradient_accumulation_steps
    trainer._generate_and_score_completions = lambda _: {"step": torch.full((rows,), trainer._step // accumulation)}
    ages = []
    for trainer._step in range(60):
        ages.append(trainer._step // accumulation - int(trainer._prepare_inputs([])["step"][0]))
    said = " ".join(hierarchy_of(options).around)
    found = re.search(r"A generation takes ([\d.]+) optimizer steps .* the policy is (\d+) step", said)
    assert bool(found) is (max(ages) > 0) is ("All ratios are exactly 1" not in said)
    if found:
        assert float(found[1]) == pytest.approx(counts[0] * counts[1] / counts[2], abs=1e-5)
        assert int(found[2]) == max(ages)


# ---------------------------------------------------------------- names


def test_every_option_of_trl_is_known():
    """Those that are read have TRL's defaults."""
    known = {}
    for made in (GRPOConfig, ModelConfig, ScriptArguments, GRPOScriptArguments, DatasetMixtureConfig):
        known |= {field.name: field.default for field in dataclasses.fields(made)}
    assert known.keys() - DEFAULTS.keys() - HARMLESS == set()
    assert {name: known[name] for name in DEFAULTS} == DEFAULTS


def test_every_option_of_trls_other_trainers_is_named_as_theirs():
    found = {}
    for file in Path(trl.__file__).parent.rglob("*_config.py"):
        for made in ast.parse(file.read_text()).body:
            if isinstance(made, ast.ClassDef) and made.name.endswith("Config"):
                names = [each.target.id for each in made.body if isinstance(each, ast.AnnAssign)]
                found[made.name.replace("Config", "Trainer")] = set(names) - DEFAULTS.keys() - HARMLESS
    assert len(found) > 15
    for trainer, names in found.items():
        for name in names:
            with pytest.raises(SpecError, match=f"'{name}' is not known to GRPOTrainer") as error:
                hierarchy_of({name: 1})
            assert trainer in str(error.value), (trainer, name)


def test_every_setting_of_transformers_generation_is_known():
    assert {name for name in vars(GenerationConfig()) if not name.startswith("_")} <= SETTINGS


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
