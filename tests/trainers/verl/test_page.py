"""The data, the reward, the command line and the example of docs/trainers/verl.md work, as far as CPUs can tell."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import verl
from hydra import compose, initialize_config_dir
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.engine_workers import ActorRolloutRefWorker

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "trainers" / "verl.md").read_text()
DATA, REWARD = ((ROOT / "docs" / "examples" / f"verl_{name}.py").read_text() for name in ("data", "reward"))
(RUN,) = re.findall(r"```bash\npython make_data.py\npython -m verl.trainer.main_ppo (.*?)```", PAGE, re.DOTALL)


def test_verl_accepts_the_command_line_for_gpus(tmp_path, monkeypatch):
    (tmp_path / "make_data.py").write_text(DATA)
    (tmp_path / "reward.py").write_text(REWARD)
    subprocess.run([sys.executable, "make_data.py"], cwd=tmp_path, check=True)
    given = shlex.split(RUN.replace("\\\n", " ").replace("$PWD", str(tmp_path)))
    with initialize_config_dir(os.path.join(os.path.dirname(verl.__file__), "trainer", "config"), version_base=None):
        config = compose("ppo_trainer", overrides=given)
    validate_config(config, need_reference_policy(config), need_critic(config))

    monkeypatch.setattr(ActorRolloutRefWorker, "actor_worker_cls", ActorRolloutRefWorker.actor_worker_cls)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert actor.policy_loss.operator.hierarchy.name == "fiberpo_domain_inward"

    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="a", eos_token="a", chat_template=template)
    rows = RLHFDataset(config.data.train_files, tokenizer, config.data)
    assert [rows[n]["data_source"] for n in range(4)] == ["addition", "sorting"] * 2
    reward = get_custom_reward_fn(config)
    right = rows[1]["reward_model"]["ground_truth"]
    for said, score in ((f"Well.\n{right}", 1.0), (f"{right}\nWell.", 0.0), ("", 0.0)):
        given = {"data_source": "sorting", "solution_str": said, "ground_truth": right, "extra_info": None}
        assert reward(**given) == score


def table_of(name):
    """What an example prints of each batch."""
    command = [sys.executable, ROOT / "docs" / "examples" / name]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    shown = [line for line in made.stdout.splitlines() if re.match(r" *\d+( +-?\d\.\d+)+$", line)]
    table = [[float(value) for value in line.split()] for line in shown]
    assert [row[0] for row in table] == list(range(12))
    assert min(table[-1][1:3]) > 0.9 > 0.7 > max(table[0][1:3])
    head = next(line for line in made.stdout.splitlines() if line.startswith("batch"))
    assert f"    {head}\n" in PAGE
    return table


def test_the_example_learns_both_domains():
    table = table_of("verl_on_cpu.py")
    assert any(row[3] > 0 for row in table) and any(row[6] > 0 for row in table), "no gate was met"


def test_the_example_with_a_teacher_learns_both_domains():
    assert all(row[3] > 1 for row in table_of("verl_teacher_on_cpu.py")), "no step is off policy"
