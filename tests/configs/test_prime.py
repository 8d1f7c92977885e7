"""The loss of a config of prime-rl, beside prime-rl's formulas, written a second time; and prime-rl's own examples."""

import pytest
import torch
from support import invoke

import fibration
from fibration.configs.prime import OTHERS, TABLE, hierarchy_of
from fibration.configs.specs import as_spec
from fibration.errors import SpecError

LOSS, TRAIN = "trainer.loss.", "orchestrator.train."
GROUP = {"orchestrator.group_size": 4}
CASES = {
    "default": {},
    "narrow": {f"{LOSS}dppo_mask_low": 0.02, f"{LOSS}dppo_mask_high": 0.01, f"{LOSS}kl_tau": 0.3},
    "no mask below": {f"{LOSS}dppo_mask_low": 0, f"{LOSS}kl_tau": 0},
    "ipo": {f"{LOSS}type": "ipo", f"{LOSS}ipo_threshold": 0.02},
    "scaled": {f"{LOSS}adv_tau": 0.5},
    "max_rl": {"orchestrator.algo.type": "max_rl"},
    "all tokens": {f"{TRAIN}filter_zero_advantages": False, f"{LOSS}kl_tau": 0.3},
}
LENGTHS = (5, 2, 7, 3, 4, 6, 1, 5, 3, 2, 4, 1)
REWARDS = ((0.1, 0.8, 0.3, 0.7), (1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 1.0))


def theirs(o, now, engine, advantages):
    """Of tokens in a row. Tokens without an advantage are left out."""
    seen = advantages != 0 if o[f"{TRAIN}filter_zero_advantages"] else torch.ones_like(advantages, dtype=bool)
    x, moved = now - engine, (now.exp() - engine.exp()).detach()
    if o[f"{LOSS}type"] == "ipo":
        kept = moved.abs() <= o[f"{LOSS}ipo_threshold"]
    else:
        kept = torch.where(advantages > 0, moved <= o[f"{LOSS}dppo_mask_high"], moved >= -o[f"{LOSS}dppo_mask_low"])
    loss = o[f"{LOSS}kl_tau"] * x**2 - kept * o[f"{LOSS}adv_tau"] * advantages * x.exp()
    return loss[seen].sum() / seen.sum()


@pytest.mark.parametrize("name", CASES)
def test_a_config_has_the_value_and_the_gradient_of_prime_rls_formulas(name):
    config = {**GROUP, **CASES[name]}
    draw, tokens = torch.Generator().manual_seed(3), sum(LENGTHS)
    engine = torch.randn(tokens, generator=draw, dtype=torch.float64) * 0.3 - 1.5
    given = engine + torch.randn(tokens, generator=draw, dtype=torch.float64) * 0.15
    r = torch.tensor(REWARDS, dtype=torch.float64)
    middle = r.mean(1, keepdim=True)
    a = (r - middle) / (middle if name == "max_rl" else 1)
    op = fibration.compile(hierarchy_of(config).hierarchy, backend="torch")
    offsets = [0, *torch.tensor(LENGTHS).cumsum(0).tolist()]
    index = op.index(offsets=offsets, prompt_group=[0] * 4 + [1] * 4 + [2] * 4)
    now, same = (given.clone().requires_grad_() for _ in range(2))
    loss = op.loss(now, engine, index=index, rewards=r.flatten()).loss
    expected = theirs({**TABLE.defaults, **config}, same, engine, a.flatten().repeat_interleave(torch.tensor(LENGTHS)))
    loss.backward()
    expected.backward()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    torch.testing.assert_close(now.grad, same.grad, rtol=1e-11, atol=1e-15)


def toml(orchestrator, sampling="", rest="", algo=""):
    """A config of `examples/` in prime-rl's nesting."""
    source = '[[orchestrator.train.source]]\nname = "x"\n[orchestrator.train.source.env.taskset]\nid = "x"\n'
    gates = 'curriculum = { gates = { zero_advantage = { type = "advantage_range" } } }\n' if "[gates]" in rest else ""
    source = source.replace('name = "x"\n[', f'name = "x"\n{gates}[')
    rest = rest.replace("[gates]", "")
    return (
        f'max_steps = 200\nseq_len = 2048\n[ckpt]\n[model]\nname = "Qwen/Qwen3-4B"\n[orchestrator]\n{orchestrator}\n{algo}'
        f"[orchestrator.train.sampling]\n{sampling}\n{source}{rest}\n[inference]\n"
    )


EXAMPLES = {  # text, words of `around`
    "basic/alphabet-sort": (
        toml("batch_size = 256\ngroup_size = 16", "max_completion_tokens = 768", "[trainer.model.lora]\nrank = 32\nalpha = 64\n[trainer.optim]\nlr = 1e-5"),
        "rank=32: only adapters are trained",
    ),
    "basic/hendrycks-sanity": (
        toml("batch_size = 512\ngroup_size = 8\nseq_len = 8192", "", "[orchestrator.eval]\ninterval = 50\n[trainer.model]\nseq_len = 16384"),
        "one batch (512 rows)",
    ),
    "basic/reverse-text": (
        toml("batch_size = 128\ngroup_size = 16", "max_completion_tokens = 128", '[trainer.optim]\nlr = 3e-6\n[orchestrator.renderer]\nname = "prime-qwen3"'),
        "up to 8 optimizer steps older",
    ),
    "basic/wiki-search": (
        toml("batch_size = 512\ngroup_size = 16", "max_completion_tokens = 512", "[gates][trainer.model.lora]\nrank = 8\ndropout = 0.0\n[orchestrator.concurrency]\ninitial_inflight = 1024"),
        "a curriculum chooses tasks",
    ),
    "debug/algo/max_rl": (toml("batch_size = 128\ngroup_size = 16", "", "", '[orchestrator.algo]\ntype = "max_rl"\n'), "one batch (128 rows)"),
    "advanced/intellect-3.1": (toml("batch_size = 2048", "", '[gates][weight_broadcast]\ntype = "nccl"'), "group_size=1: an answer is compared with itself"),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_values_of_an_example_are_read_from_a_file(name, tmp_path):
    text, words = EXAMPLES[name]
    (tmp_path / "rl.toml").write_text(text)
    found = as_spec(f"prime:{tmp_path / 'rl.toml'}").load()
    assert {n: p.default for n, p in found.hierarchy.parameters.items()} == {"epsilon_low": 0.2, "epsilon_high": 0.2, "kl_tau": 1e-3}
    code, output = invoke("show", f"prime:{tmp_path / 'rl.toml'}")
    assert code == 0 and words in " ".join(found.around) and words in " ".join(output.split())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        *(({"orchestrator.algo.type": kind}, why) for kind, why in OTHERS.items()),
        ({"orchestrator.algo.type": "ppo"}, "one of grpo, max_rl"),
        ({f"{LOSS}type": "custom", f"{LOSS}import_path": "my.loss"}, "fibration audit"),
        ({f"{LOSS}type": "dppo"}, "one of default, ipo"),
        ({f"{LOSS}kl_tau": -1}, "'trainer.loss.kl_tau'"),
        ({f"{LOSS}adv_tau": 0}, "nothing is learnt"),
        ({f"{LOSS}clip": 1}, "'trainer.loss.clip' is not known"),
        ({f"{TRAIN}source": [{"algo": {"type": "opd"}}]}, "without their own algo"),
        ({f"{TRAIN}source": [1]}, "a list of tables"),
        ({"orchestrator.algo.type": ["grpo"]}, "one of grpo, max_rl"),
        ({"orchestrator.batch_size": 64, "orchestrator.token_batch_size": 9}, "one of batch_size and token_batch_size"),
        ({f"{TRAIN}sampling.extra_body.top": 1}, "extra_body.top' is not known"),
    ],
)
def test_what_is_not_read_is_an_error_that_names_the_option(config, words):
    with pytest.raises(SpecError) as error:
        hierarchy_of(config)
    assert words in str(error.value)


SAID = [
    ({f"{LOSS}adv_tau": 2}, "warning", "multiplied by 2"),
    ({f"{TRAIN}sampling.extra_body.top_k": 20}, "warning", "as a factor"),
    ({f"{TRAIN}sampling.temperature": 0}, "error", "the likeliest token"),
    ({f"{TRAIN}sampling.temperature": 0.7}, "note", "logits divided by 0.7"),
    ({f"{LOSS}ipo_threshold": 0.3}, "note", "ipo_threshold=0.3 has no effect"),
    ({"orchestrator.algo.length_penalty.num_turns_weight": 0.1}, "note", "after the penalty for long answers"),
]


@pytest.mark.parametrize(("config", "severity", "words"), SAID, ids=[s[2] for s in SAID])
def test_a_config_has_findings_of_this_severity(config, severity, words):
    found = hierarchy_of({**GROUP, **config}).findings
    assert any(f.severity == severity and words in f.sentence for f in found), found


def test_a_file_that_is_no_toml_and_one_of_another_trainer_are_errors(tmp_path):
    (tmp_path / "rl.toml").write_text("a = ")
    code, output = invoke("show", f"prime:{tmp_path / 'rl.toml'}")
    assert code == 2 and "TOML" in output
    (tmp_path / "rl.toml").write_text(EXAMPLES["basic/wiki-search"][0])
    code, output = invoke("show", f"verl:{tmp_path / 'rl.toml'}")
    assert code == 2 and "is no config of verl" in output and "an option of prime-rl" in output
