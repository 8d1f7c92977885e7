"""The loss of a config of OpenRLHF, beside OpenRLHF's formulas, written a second time; and OpenRLHF's own examples."""

import pytest
import torch
import yaml
from support import invoke

import fibration
from fibration.configs.openrlhf import TABLE, hierarchy_of
from fibration.configs.specs import as_spec
from fibration.errors import SpecError

GROUP = {"rollout.n_samples_per_prompt": 4, "rollout.batch_size": 2, "train.batch_size": 4}
IS = {"algo.advantage.is_correction_enable": True, "algo.advantage.is_correction_threshold": [0.9, 1.1]}
LOSS = {"algo.kl.use_loss": True, "algo.kl.init_coef": 0.3}
RLOO = {"algo.advantage.estimator": "rloo", "algo.kl.init_coef": 0.0}
CASES = {
    **{name: {"algo.advantage.estimator": name, "algo.kl.init_coef": 0.1} for name in (
        "gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo")},
    "discounted": {"algo.advantage.estimator": "gae", "algo.advantage.gamma": 0.9, "algo.advantage.lambd": 0.8},
    "no value": {"algo.advantage.estimator": "gae", "algo.advantage.gamma": 0.0},
    "returns": {"algo.advantage.estimator": "reinforce", "algo.advantage.gamma": 0.9, "algo.kl.estimator": "k2"},
    "no deviation": {"algo.advantage.estimator": "reinforce_baseline", "algo.advantage.no_std_norm": True},
    "clipped rewards": {**RLOO, "reward.clip_range": [-0.3, 0.2]},
    "clipped rewards, reinforce": {"algo.advantage.estimator": "reinforce", "reward.clip_range": [0.1, 0.6]},
    "two bounds": {**RLOO, "actor.eps_clip_low_high": [0.1, 0.05]},
    "one bound above 1": {**RLOO, "actor.eps_clip": 1.5},
    "dual clip": {**RLOO, "actor.eps_clip": 0.1, "actor.dual_clip": 1.05},
    **{f"gspo, {clip}": {**RLOO, "actor.policy_loss_type": "gspo", "actor.eps_clip": 0.02, "actor.dual_clip": clip}
       for clip in (None, 1.05)},
    "gspo and vLLM": {**RLOO, **IS, "actor.policy_loss_type": "gspo", "actor.eps_clip": 0.02},
    **{kind: {**RLOO, **IS, "algo.advantage.is_correction_type": kind} for kind in ("tis", "icepop", "seq-mask-tis")},
    **{f"loss {kind}": {**RLOO, **LOSS, "algo.kl.estimator": kind} for kind in ("k1", "k2", "k3")},
    "loss of gspo": {**RLOO, **LOSS, "algo.kl.estimator": "k2", "actor.policy_loss_type": "gspo"},
}  # fmt: skip
LENGTHS = (5, 2, 7, 3, 4, 6, 1, 5)


class Rows:
    """Eight answers to two prompts, padded."""

    def __init__(self):
        draw = torch.Generator().manual_seed(3)

        def normal(scale, shift=0.0):
            return torch.randn(8, 7, generator=draw, dtype=torch.float64) * scale + shift

        self.mask = torch.arange(7) < torch.tensor(LENGTHS)[:, None]
        self.old = normal(0.3, -1.5)
        self.now, self.engine, self.reference = (self.old + normal(s) for s in (0.15, 0.15, 0.3))
        self.values, self.rewards = normal(0.5), torch.rand(8, generator=draw, dtype=torch.float64)


def kl(kind, p, q):
    x = p - q
    found = {"k1": x, "k2": x**2 / 2, "k3": torch.exp(-x) - 1 + x}[kind]
    return found.clamp(-10, 10)


def advantages(o, b):
    """As the experience maker computes them, a row of tokens each."""
    r, mask = b.rewards.reshape(2, 4), b.mask.double()
    estimator, n = o["algo.advantage.estimator"], 4
    if estimator == "rloo":
        r = r - (r.sum(1, keepdim=True) - r) / (n - 1)
    elif estimator in ("reinforce_baseline", "dr_grpo"):
        r = r - r.mean(1, keepdim=True)
    elif estimator == "group_norm":
        r = (r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-9)
    r = r.reshape(8).clamp(*o["reward.clip_range"])
    penalty = 0 if o["algo.kl.use_loss"] else max(o["algo.kl.init_coef"], 0)
    of_token = -penalty * kl(o["algo.kl.estimator"], b.old, b.reference)
    for row, length in enumerate(LENGTHS):
        of_token[row, length - 1] += r[row]
    of_token, values = of_token * mask, b.values * mask
    is_gae = estimator == "gae"
    gamma = o["algo.advantage.gamma"] if is_gae or estimator == "reinforce" else 1.0
    lam, found, last = o["algo.advantage.lambd"] if is_gae else 1.0, torch.zeros(8, 7).double(), torch.zeros(8).double()
    for t in reversed(range(7)):
        after = values[:, t + 1] if t < 6 else torch.zeros(8).double()
        delta = of_token[:, t] + (gamma * after - values[:, t] if is_gae else 0)
        last = delta + gamma * lam * last
        found[:, t] = last
    if estimator in ("gae", "reinforce", "reinforce_baseline"):
        middle = (found * mask).sum() / mask.sum()
        variance = ((found - middle) ** 2 * mask).sum() / mask.sum()
        found = (found - middle) / (1 if o["algo.advantage.no_std_norm"] else variance.clamp(min=1e-8).sqrt())
    return found


def theirs(o, b, now):
    a, mask = advantages(o, b), b.mask.double()
    low, high = o["actor.eps_clip_low_high"] or (o["actor.eps_clip"],) * 2
    by_row = o["actor.policy_loss_type"] == "gspo"
    corrects, (least, most) = o["algo.advantage.is_correction_enable"], o["algo.advantage.is_correction_threshold"]

    def mean_of_row(x):
        return (x * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)

    x = now - (b.engine if by_row and corrects else b.old)
    r = mean_of_row(x).exp().expand(8, 7) if by_row else x.exp()
    gain = torch.min(r * a, r.clamp(1 - low, 1 + high) * a)
    if (c := o["actor.dual_clip"]) is not None:
        gain = torch.where(a < 0, torch.max(gain, c * a), gain)
    if corrects and not by_row:
        w, kind = (b.old - b.engine).exp(), o["algo.advantage.is_correction_type"]
        whole = mean_of_row(b.old - b.engine).exp()
        gain = gain * {
            "tis": w.clamp(least, most),
            "icepop": w * ((w >= least) & (w <= most)),
            "seq-mask-tis": w * ((whole >= least) & (whole <= most)),
        }[kind]
    loss = -mean_of_row(gain).mean() if by_row else -(gain * mask).sum() / mask.sum()
    if o["algo.kl.use_loss"]:
        divergence = kl(o["algo.kl.estimator"], now, b.reference)
        loss = loss + o["algo.kl.init_coef"] * (divergence * mask).sum() / mask.sum()
    return loss


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_a_config_has_the_value_and_the_gradient_of_openrlhfs_formulas(name):
    config = {**GROUP, **CASES[name]}
    found = hierarchy_of(config)
    b = Rows()
    op, old = fibration.compile(found.hierarchy, backend="torch"), b.old
    if "ratios are to vLLM's log-probs" in " ".join(found.around):
        old = b.engine
    names = op.hierarchy.policies
    given = {n: x[b.mask] for n, x in (("rollout", b.engine), ("reference", b.reference)) if n in names}
    more = {"prompt_group": [0] * 4 + [1] * 4} if op.hierarchy.groups else {}
    more |= {"attributes": {"value": b.values[b.mask]}} if op.hierarchy.attributes else {}
    rewards = b.rewards
    if "Rewards are per token" in " ".join(found.around):
        rewards = torch.zeros(8, 7).double()
        rewards[torch.arange(8), torch.tensor(LENGTHS) - 1] = b.rewards
        rewards = rewards[b.mask]
    if "`reward` is what the reward function gives, cut" in " ".join(found.around):
        rewards = torch.where(rewards == 0, 0, rewards.clamp(*({**TABLE.defaults, **config}["reward.clip_range"])))
    index = op.index(offsets=[0, *torch.tensor(LENGTHS).cumsum(0).tolist()], **more)
    now, same = (b.now.clone().requires_grad_() for _ in range(2))
    loss = op.loss(now[b.mask], old[b.mask], index=index, rewards=rewards, policies=given).loss
    expected = theirs({**TABLE.defaults, **config}, b, same)
    loss.backward()
    expected.backward()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    torch.testing.assert_close(now.grad, same.grad, rtol=1e-11, atol=1e-14)


BASELINE = {"algo.advantage.estimator": "reinforce_baseline", "algo.kl.use_loss": True, "algo.kl.estimator": "k2"}
DYNAMIC = {"algo.dynamic_filtering_enable": True, "algo.dynamic_filtering_range": [0.0, 1.0], "train.dynamic_batch_enable": True}
EXAMPLES = {  # of `examples/scripts`: options, defaults of parameters, words of `around`
    "train_dapo_ray_hybrid_engine": (
        {"algo": {"kl": {"init_coef": "1e-3", "use_loss": True, "estimator": "k3"}, "dynamic_filtering_enable": True,
                  "dynamic_filtering_range": [0, 1],
                  "advantage": {"gamma": 1.0, "estimator": "group_norm", "is_correction_enable": True}},
         "actor": {"eps_clip_low_high": [0.2, 0.27], "adam": {"lr": "5e-7"}},
         "train": {"batch_size": 128, "micro_batch_size": 8, "max_epochs": 1, "colocate_all": True},
         "rollout": {"batch_size": 128, "n_samples_per_prompt": 8, "micro_batch_size": 16}},
        {"epsilon_high": 0.27, "beta": 1e-3, "least": 0.5, "most": 5.0}, "1024 sampled rows take 8 optimizer steps",
    ),
    "train_prorlv2_math_hybrid_engine": (
        {**BASELINE, **DYNAMIC, "algo.kl.init_coef": 1e-4, "actor.eps_clip_low_high": [0.2, 0.27], "train.batch_size": 1024,
         "rollout.batch_size": 512, "rollout.n_samples_per_prompt": 16, "rollout.max_new_tokens": 8192, **IS,
         "algo.advantage.is_correction_threshold": [0.5, 5.0], "algo.advantage.is_correction_type": "icepop",
         "reward.stop_properly_penalty_coef": 0.0, "data.max_len": 9216},
        {"beta": 1e-4, "most": 5.0}, "`reward` is that after the penalty for cut answers",
    ),
    "train_ppo_ray_hybrid_engine": (
        {"train.batch_size": 128, "rollout.batch_size": 1024, "rollout.n_samples_per_prompt": 1, "algo.kl.init_coef": 0.01,
         "reward.normalize_enable": True, "critic.adam.lr": 9e-6, "algo.advantage.is_correction_enable": True},
        {"beta": 0.01, "epsilon_low": 0.2}, "the attribute 'value' of a token",
    ),
    "train_reinforce_baseline_ray_agent_async": (
        {**BASELINE, **DYNAMIC, "train.async_enable": True, "train.partial_rollout_enable": True, "actor.entropy_coef": 0.0,
         "train.agent_func_path": "examples/python/agent_func.py", "algo.kl.init_coef": 1e-5, "train.batch_size": 1024,
         "rollout.batch_size": 128, "rollout.n_samples_per_prompt": 8, "algo.advantage.is_correction_enable": True,
         "algo.advantage.is_correction_type": "icepop", "ds.ring_attn_size": 2},
        {"beta": 1e-5}, "an answer may have tokens of several policies",
    ),
    "train_vlm_math_hybrid_engine": (
        {**BASELINE, "algo.kl.init_coef": 0, "train.batch_size": 1024, "rollout.batch_size": 128, "actor.freeze_visual_encoder": True,
         "rollout.n_samples_per_prompt": 8, "rollout.max_new_tokens": 2048, "train.num_episodes": 100},
        {"epsilon_high": 0.2}, "at most one optimizer step",
    ),
    "train_ppo_with_reward_fn": (
        {"train.colocate_actor_ref": True, "train.batch_size": 128, "rollout.batch_size": 1024, "algo.kl.init_coef": 0.01,
         "reward.remote_url": "/openrlhf/examples/python/reward_func.py", "reward.normalize_enable": True},
        {"beta": 0.01}, "take 8 optimizer steps",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_values_of_an_example_are_read_from_a_file(name, tmp_path):
    config, defaults, words = EXAMPLES[name]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    found = as_spec(f"openrlhf:{tmp_path / 'run.yaml'}").load()
    assert {n: found.hierarchy.parameters[n].default for n in defaults} == pytest.approx(defaults)
    assert words in " ".join(found.around)
    code, output = invoke("show", f"openrlhf:{tmp_path / 'run.yaml'}")
    assert code == 0 and words in " ".join(output.split())


@pytest.mark.sampled
@pytest.mark.parametrize("name", EXAMPLES)
def test_no_law_of_an_example_is_refused(name):
    report = hierarchy_of(EXAMPLES[name][0]).hierarchy.verify()
    assert report.ok, str(report)


SCRIPT = """set -x
# python3 -m openrlhf.cli.train_ppo_ray --algo.kl.init_coef 7
ray job submit --address="http://127.0.0.1:8265" \\
   -- python3 -m openrlhf.cli.train_ppo_ray \\
   --actor.model_name_or_path ${MODEL_PATH} --actor.eps_clip_low_high 0.2 0.27 \\
   --algo.advantage.estimator rloo --rollout.n_samples_per_prompt 8 \\
   --algo.kl.init_coef=1e-3 --train.colocate_all --ckpt.path "a b"
echo done
"""


def test_the_command_of_a_script_is_a_config(tmp_path):
    (tmp_path / "run.sh").write_text(SCRIPT)
    spec = f"openrlhf:{tmp_path / 'run.sh'}"
    found = as_spec([spec, "algo.kl.use_loss=true"]).load().hierarchy
    assert (found.parameters["epsilon_high"].default, found.parameters["beta"].default) == (0.27, 1e-3)
    assert "kl" in found.penalties and not as_spec(spec).load().hierarchy.penalties


@pytest.mark.parametrize(
    ("text", "words"),
    [("echo", "no line with"), ("x openrlhf.cli.train_ppo_ray ${ARGS[@]}", "ARGS"), ("openrlhf.cli.train_ppo_ray 'a", "quotation")],
)
def test_a_script_without_written_options_is_an_error(text, words, tmp_path):
    (tmp_path / "run.sh").write_text(text)
    with pytest.raises(SpecError, match="cannot read the script") as error:
        as_spec(f"openrlhf:{tmp_path / 'run.sh'}").load()
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("config", "option"),
    [
        ({"actor.clip": 1}, "'actor.clip' is not known"),
        (RLOO, "'rollout.n_samples_per_prompt'"),
        ({"actor.dual_clip": 1}, "'actor.dual_clip'"),
        ({"actor.eps_clip_low_high": [0.3, 0]}, "'actor.eps_clip_low_high'"),
        ({"reward.clip_range": [1, -1]}, "'reward.clip_range'"),
        ({"actor.eps_clip_low_high": 0.2}, "two numbers"),
        ({"actor.policy_loss_type": "sapo"}, "one of ppo, gspo"),
        ({**IS, "algo.advantage.is_correction_threshold": [0, 2]}, "is_correction_threshold"),
        ({"algo.advantage.lambd": 0}, "'algo.advantage.lambd'"),
        ({"algo.advantage.estimator": "grpo"}, "one of gae"),
        ({"train.batch_size": 1.5}, "a whole number"),
    ],
)
def test_what_openrlhf_would_not_train_is_an_error_that_names_the_option(config, option):
    with pytest.raises(SpecError) as error:
        hierarchy_of(config)
    assert option in str(error.value)


SAID = [
    ({**GROUP, **RLOO, **IS, "algo.advantage.is_correction_threshold": [1.1, 2]}, "error", "the weight is not 1"),
    ({**GROUP, **RLOO, **IS, "algo.advantage.is_correction_type": "icepop", "algo.advantage.is_correction_threshold": [1, 2]}, "error", "tokens are dropped"),
    ({**GROUP, **RLOO, **LOSS, "algo.kl.estimator": "k1"}, "error", "0 on policy"),
    ({**GROUP, **RLOO, **LOSS, "algo.kl.estimator": "k3"}, "warning", "of the other divergence"),
    ({**GROUP, **RLOO, "actor.policy_loss_type": "gspo"}, "warning", "hardly ever bind"),
    ({**GROUP, **RLOO, "rollout.top_p": 0.9}, "warning", "no weight makes up for it"),
    ({**GROUP, **RLOO, **IS, "rollout.top_p": 0.9}, "warning", "as a factor, from 0.9 to 1"),
    ({"ds.lora.rank": 8, "ds.lora.dropout": 0.1}, "warning", "differ by dropout"),
    ({**GROUP, **RLOO, "algo.advantage.gamma": 0.9}, "warning", "has no effect"),
    ({"algo.advantage.is_correction_type": "icepop"}, "note", "is_correction_type=icepop has no effect"),
    ({"actor.aux_loss_coef": 0.01}, "note", "load balancing"),
    ({"algo.kl.target": 6}, "note", "set the parameter 'beta' in each call"),
]


@pytest.mark.parametrize(("config", "severity", "words"), SAID, ids=[s[2] for s in SAID])
def test_a_config_has_findings_of_this_severity(config, severity, words):
    found = hierarchy_of(config).findings
    assert any(f.severity == severity and words in f.sentence for f in found), found


def test_two_trainers_with_the_same_loss_are_found_the_same(tmp_path):
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({**GROUP, "algo.advantage.estimator": "dr_grpo", "algo.kl.init_coef": 0}))
    verl = {
        "algorithm.adv_estimator": "grpo", "algorithm.norm_adv_by_std_in_grpo": False, "actor_rollout_ref.rollout.n": 4,
        "actor_rollout_ref.actor.clip_ratio_c": 3.0,
    }  # fmt: skip
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(verl))
    pair = (f"openrlhf:{tmp_path / 'a.yaml'}", "actor.dual_clip=3", f"verl:{tmp_path / 'b.yaml'}")
    code, output = invoke("compare", *pair, "--ignore-advantages")
    assert code == 0 and "OpenRLHF: 8 sampled rows" in output, output
    code, output = invoke("compare", pair[0], pair[2], "--ignore-advantages")
    assert code == 1 and "gate on token" in output, output
