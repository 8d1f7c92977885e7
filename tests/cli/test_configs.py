"""A trainer's config in the place of a SPEC: every command, every format, and what they say beside the loss."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
import yaml
from support import invoke
from typer.testing import CliRunner

from fibration import Hierarchy, load
from fibration.cli.main import app
from fibration.configs.trl import hierarchy_of

CONFIG = """
learning_rate: 1e-6
loss_type: grpo
num_iterations: 2
beta: 0.04
use_bias_correction_kl: false
"""
K3 = "use_bias_correction_kl=False: k3 in the loss: its gradient is that of the other divergence"
STEPS = (
    "A generation takes 2 optimizer steps (num_iterations=2, steps_per_generation=1, gradient_accumulation_steps=1): in "
    "the last, the policy is 1 step away from the one that sampled."
)
AROUND = "`reward` is the sum of the reward functions' values."


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "grpo.yaml").write_text(CONFIG)
    return f"trl:{tmp_path / 'grpo.yaml'}"


def flat(text: str) -> str:
    return " ".join(text.split())


def test_show_prints_the_loss_and_what_surrounds_it(config):
    code, output = invoke("show", config, "epsilon=0.3")
    assert code == 0
    assert output.startswith("trl_grpo\n  J = ") and "Parameter('epsilon_low', default=0.3" in output
    assert flat(output).endswith(f"what TRL does around this loss {STEPS} {AROUND}")


def test_show_in_json_can_be_read_back(config):
    code, output = invoke("show", config, "-f", "json")
    assert code == 0 and Hierarchy.model_validate_json(output).name == "trl_grpo"


def test_verify_says_what_is_off_in_the_trainers_words(config):
    for words in ([], ["--all"]):
        code, output = invoke("verify", config, *words)
        assert code == 0
        off, _, around = flat(output).partition("what TRL does around this loss")
        assert K3 in off and "(kl_gradient) write: use_bias_correction_kl=true" in off and AROUND in around
        assert "given up:" not in output  # the config's reader gave laws up, and no user


# What follows the config, whether each value of --fail-on ends with 1, and what is said of the outcome.
GRAVITIES = [
    ([], {"error": 0, "warning": 1, "never": 0}, "verified, 1 warning"),
    (["beta=0"], {"error": 0, "warning": 0, "never": 0}, "verified"),
    (["loss_type=cispo", "beta=0"], {"error": 1, "warning": 1, "never": 0}, "1 error"),
    (["loss_type=cispo"], {"error": 1, "warning": 1, "never": 0}, "1 error, 1 warning"),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("words", "codes", "outcome"), GRAVITIES, ids=[g[2] for g in GRAVITIES])
def test_the_gravest_finding_decides_the_exit_code(config, words, codes, outcome):
    for fail_on, expected in codes.items():
        code, output = invoke("verify", config, *words, "--fail-on", fail_on)
        assert code == expected, output
        first, *_, last = output.splitlines()
        name = first.split()[0]
        said, counted = first.removeprefix(f"{name}  ").split("  ")
        assert said == (outcome.removeprefix("verified, ") if expected else outcome)
        assert re.fullmatch(r"\d laws proved, \d given up(, 1 (more )?warning)?", counted), counted
        assert last.startswith("1 of 1" if outcome.startswith("verified") and not expected else "0 of 1")
    assert invoke("show", config, *words)[0] == 0 and invoke("compare", config, *words, config, *words)[0] == 0


def test_the_gravest_finding_comes_first_with_what_to_write(config):
    found = json.loads(invoke("verify", config, "loss_type=cispo", "-f", "json")[1])[0]
    assert [finding["severity"] for finding in found["findings"]] == ["error", "warning", "note", "note"]
    assert found["ok"] is False and found["findings"][0]["change"] == "epsilon_high=1.2"
    code, output = invoke("verify", config, "loss_type=cispo")
    assert flat(output).startswith("trl_cispo 1 error, 1 warning 6 laws proved, 5 given up ✗ error config epsilon=0.2")
    code, output = invoke("show", config, "loss_type=cispo")
    assert "what is off in this config\n  error: epsilon=0.2 (the default)" in output


def test_words_with_an_equals_sign_belong_to_the_config_before_them(config):
    code, output = invoke("verify", "dapo", config, "beta=0", config, "loss_type=sapo", "gspo", "-f", "json")
    found = json.loads(output)
    assert code == 0
    assert [report["hierarchy"] for report in found] == ["dapo", "trl_grpo", "trl_sapo", "gspo"]
    assert ["findings" in report for report in found] == [False, True, True, False]
    said = [" ".join(finding["sentence"] for finding in report["findings"]) for report in found[1:3]]
    assert "k3" not in said[0] and found[1]["around"][:2] == [STEPS, AROUND] and "k3" in said[1]


def test_every_format_is_valid_and_says_what_is_off(config):
    _, junit = invoke("verify", config, "-f", "junit")
    (said,) = [each.text for each in Xml.fromstring(junit).findall("testsuite/system-out")]
    assert K3 in said and AROUND in said
    for words, number in ((["--fail-on", "warning"], "1"), ([], "0"), (["loss_type=cispo"], "1")):
        suite = Xml.fromstring(invoke("verify", config, *words, "-f", "junit")[1]).find("testsuite")
        failures = suite.findall(f"testcase[@classname='{suite.get('name')}.config']/failure")
        assert suite.get("failures") == number == str(len(failures))
    _, markdown = invoke("verify", config, "-f", "markdown")
    assert f"- {AROUND}" in markdown and K3 in markdown
    _, github = invoke("verify", config, "-f", "github")
    lines = [line for line in github.splitlines() if K3 in line]
    assert len(lines) == 1 and lines[0].startswith(f"::warning file={config.removeprefix('trl:')},title=what is off")
    _, github = invoke("verify", config, "loss_type=cispo", "-f", "github")
    assert [line.split()[0] for line in github.splitlines()[:-1]] == ["::error", "::warning", "::notice", "::notice"]


def test_a_config_is_compared_at_its_numbers(config):
    code, output = invoke("compare", config, "beta=0", "grpo")
    assert code == 0
    assert "with epsilon_high = 0.2, epsilon_low = 0.2" in flat(output)
    assert "makes them of rewards" in flat(output) and f"TRL: {AROUND}" in flat(output)


def test_a_config_is_compared_with_a_loss_that_calls_its_parameters_otherwise(config, tmp_path):
    """The other loss has other defaults: both have the config's numbers."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from fibration import *\n"
        "(token,) = strata('token')\n"
        "lo, hi = Parameter('eps_lo', default=0.1, upper=1), Parameter('eps_hi', default=0.5)\n"
        "mine = Hierarchy(name='mine', gates={token: pessimistic_clip_gate(lo, hi)}, decomposition=ratio_deviation(),\n"
        "                 objective=trajectory_mean())\n"
    )
    for words in ([config, "beta=0", str(file)], [str(file), config, "beta=0"]):
        code, output = invoke("compare", *words)
        assert code == 0, output
        assert "eps_hi = 0.2" in flat(output) and "eps_lo = 0.2" in flat(output)
    code, output = invoke("compare", config, "beta=0", "loss_type=dapo", str(file))
    assert code == 1, output


def test_two_configs_with_other_numbers_are_other_losses(config):
    assert invoke("compare", config, config)[0] == 0
    code, output = invoke("compare", config, config, "epsilon_high=0.28")
    assert code == 1 and "'trl_grpo' is not the same loss as 'trl_grpo_2'" in flat(output)
    assert f"fix: in {config} write epsilon_high=0.28: then both declare the same" in flat(output)


@pytest.mark.sampled
@pytest.mark.parametrize("number", ["epsilon=0.25", "epsilon_high=0.21", "delta=4", "scale_rewards=none"])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_another_number_is_seen_through_advantages_of_rewards(config, loss_type, number):
    """Equal rewards make no advantage, and one sign of two meets the bound: few of the batches tried tell."""
    words = config, f"loss_type={loss_type}", "beta=0"
    assert "has the coefficient" in flat(invoke("compare", *words, *words, number)[1])


def test_a_table_names_the_options_that_decide_each_part(config, tmp_path):
    """Of two configs of one trainer, the options in which they differ; of other pairs, those that are no default."""
    other, verl = tmp_path / "other.yaml", tmp_path / "verl.yaml"
    other.write_text("loss_type: dr_grpo\nbeta: 0.04\nmax_completion_length: 512\nlearning_rate: 1.0e-6\n")
    verl.write_text("actor_rollout_ref: {rollout: {n: 8}, actor: {loss_agg_mode: seq-mean-token-mean}}\n")
    _, output = invoke("compare", config, "loss_type=dapo", "beta=0", "epsilon_high=0.28", f"trl:{other}")
    rows = {line.split("  ")[0]: line for line in output.splitlines() if line.startswith("✗ ")}
    assert [*rows] == ["✗ normaliser", "✗ penalties", "✗ gate on token"]
    for words in ("[loss_type=dapo]", "[loss_type=dr_grpo]", "[beta=0]", "[epsilon_high=0.28]", "(its default)]"):
        assert words in output
    assert "learning_rate" not in output and "the same in both: strata, decomposition" in flat(output)
    assert f"in {config} write loss_type=dr_grpo beta=0.04 max_completion_length=512 and leave out" not in flat(output)
    _, output = invoke("compare", f"verl:{verl}", f"trl:{other}")
    assert "loss_agg_mode=seq-mean-token-mean]" in "".join(output.split()) and "[loss_type=dr_grpo]" in flat(output)


def test_a_parameter_of_a_config_may_be_matched_by_hand(config):
    code, output = invoke("compare", config, "beta=0", "delta=3", "loss_type=dapo", "ppo", "--param", "ceiling=3")
    assert code == 0, output


def test_two_losses_are_compared_not_one_and_not_three(config):
    for words, said in (([config, "beta=0"], "a second SPEC"), (["dapo", "gspo", config], "two SPECs")):
        code, output = invoke("compare", *words)
        assert code == 2 and said in output


def test_commands_of_one_loss_take_a_config(config, tmp_path):
    code, output = invoke("compile", config, "beta=0", "-b", "torch")
    assert code == 0 and "trl_grpo" in output
    code, output = invoke("plot", config, "beta=0", "--figure", "gates", "-o", tmp_path / "out")
    assert code == 0 and "trl_grpo" in output
    code, output = invoke("show", config, "dapo")
    assert code == 2 and "one SPEC" in output


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["bta=0"], "did you mean 'beta'?"),
        (["loss_type=ppo"], "the option 'loss_type'"),
        (["beta=[0"], "cannot read 'beta=[0'"),
    ],
)
def test_a_config_that_cannot_be_read_is_unusable(config, words, found):
    for command in ("show", "verify"):
        code, output = invoke(command, config, *words)
        assert code == 2 and found in output and "Traceback" not in output


def test_a_config_as_a_command_is_an_error_that_names_the_command(config):
    code, output = invoke(config)
    assert code == 2 and f"fibration verify {config}" in flat(output)


def test_a_file_that_is_missing_is_unusable_and_stops_no_other():
    code, output = invoke("verify", "trl:none.yaml", "dapo")
    assert code == 2 and "cannot read 'trl:none.yaml'" in output and "dapo  verified" in output


def test_show_in_python_is_a_file_that_declares_the_loss(config, tmp_path):
    code, output = invoke("show", config, "-f", "python")
    off, around = (
        "# what is off in this config\n# warning: ",
        f"# what TRL does around this loss\n# {STEPS}\n# {AROUND}",
    )
    assert code == 0 and output.startswith(off) and f"\n{around}\nfrom fibration import" in output
    (tmp_path / "mine.py").write_text(output)
    assert load(tmp_path / "mine.py") == hierarchy_of(yaml.safe_load(CONFIG)).hierarchy


# ---------------------------------------------------------------- audits

FUNCTIONS = """
import torch

def grpo(log_probs, old_log_probs, advantages, mask, ref_log_probs):
    r, a, d = (log_probs - old_log_probs).exp(), advantages[:, None], ref_log_probs - log_probs
    values = -torch.minimum(r * a, r.clamp(0.8, 1.2) * a) + 0.04 * (d.exp() - d - 1)
    return ((values * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()

def ppo(log_prob, old_log_prob, advantages, response_mask):
    r, a = (log_prob - old_log_prob).exp(), advantages[:, None]
    values = torch.maximum(-r * a, -r.clamp(0.8, 1.2) * a)
    values = torch.where(a < 0, torch.minimum(-3 * a, values), values)
    return (values * response_mask).sum() / response_mask.sum()
"""


def test_a_function_is_audited_beside_a_config(config, tmp_path):
    (tmp_path / "my.py").write_text(FUNCTIONS)
    grpo = f"{tmp_path / 'my.py'}:grpo"
    code, output = invoke("audit", grpo, "--as", config)
    assert code == 0 and "the same gradient as 'trl_grpo' with" in output
    _, _, beside = flat(output).partition("what TRL does around this loss")
    assert "'trl_grpo' makes them of rewards" in beside and AROUND in beside
    code, output = invoke("audit", grpo, "--as", config, "epsilon_high=0.28", "--all")
    assert code == 1 and "epsilon_high = 0.28" in output and "at the ratio 1.28" in output and "--all" not in output
    code, output = invoke(
        "audit", grpo, "--as", config, "epsilon_high=0.28", "--param", "epsilon_high=0.2", "-f", "json"
    )
    assert code == 0 and json.loads(output)["losses"][0]["parameters"]["epsilon_high"] == 0.2


@pytest.mark.thorough
def test_a_function_is_audited_beside_a_config_of_verl(tmp_path):
    (tmp_path / "my.py").write_text(FUNCTIONS)
    options = {"adv_estimator": "grpo"}, {"rollout": {"n": 8}, "actor": {"loss_agg_mode": "token-mean"}}
    (tmp_path / "verl.yaml").write_text(
        yaml.safe_dump(dict(zip(("algorithm", "actor_rollout_ref"), options, strict=True)))
    )
    given = "audit", f"{tmp_path / 'my.py'}:ppo", "--as", f"verl:{tmp_path / 'verl.yaml'}"
    assert invoke(*given)[0] == 0
    code, output = invoke(*given, "actor_rollout_ref.actor.clip_ratio_c=10")
    assert code == 1 and "ceiling = 10" in output


def test_numbers_beside_a_loss_are_its_parameters(tmp_path):
    (tmp_path / "my.py").write_text(FUNCTIONS)
    code, output = invoke("audit", f"{tmp_path / 'my.py'}:ppo", "epsilon=0.3")
    assert code == 2 and "--as trl:FILE" in output
    code, output = invoke("audit", f"{tmp_path / 'my.py'}:ppo", "--as", "ppo", "epsilon_low=0.2")
    assert code == 0, output
    code, output = invoke("audit", f"{tmp_path / 'my.py'}:ppo", "--as", "ppo", "epsilon_low=0.3")
    assert code == 1 and "epsilon_low = 0.3" in output
    for word in ("epsilon=0.3", "epsilon_low=x", "epsilon_low"):
        code, output = invoke("audit", f"{tmp_path / 'my.py'}:ppo", "--as", "ppo", word)
        assert code == 2 and word.split("=")[0] in output


@pytest.mark.thorough
def test_several_configs_are_told_apart(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.yaml").write_text("loss_type: dapo\nbeta: 0.04\n")
    named = [f"trl:{tmp_path / name}.yaml" for name in "ab"]
    found = flat(CliRunner().invoke(app, ["verify", *named]).output).replace(" ", "")  # long paths are cut
    for name in named:
        assert f"{name}:whatisoff" in found
