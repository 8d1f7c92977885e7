"""The plugin in separate processes: verl finds it, and a plugin that cannot load reports the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.parent
POLICY_LOSS = "+actor_rollout_ref.actor.policy_loss"

# verl without an attribute of one of its modules, as in a release that renamed it.
WITHOUT = """
import importlib.abc, importlib.machinery, sys

class Without(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != {module!r}:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (run(module), delattr(module, {attribute!r}))
        return spec

sys.meta_path.insert(0, Without())
"""
LOSS = """
from verl.trainer.ppo.core_algos import get_policy_loss_fn
try:
    get_policy_loss_fn("fibration")(old_log_prob=None, log_prob=None, advantages=None, response_mask=None)
except Exception as error:
    print(type(error).__name__, error)
"""
CONFIG = """
import os, sys, verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass

folder = os.path.join(os.path.dirname(verl.__file__), "trainer", "config")
with initialize_config_dir(folder, version_base=None):
    config = compose({name!r}, overrides=sys.argv[1:])
actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
loss = actor.policy_loss
"""


def run(program: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **env}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_verl_finds_the_plugin_when_it_is_imported():
    """And nothing of workers is imported with it, which takes seconds."""
    made = run("import sys, verl\nprint('verl.workers.engine_workers' in sys.modules)" + LOSS)
    assert made.returncode == 0, made.stderr
    first, said = made.stdout.split("\n", 1)
    assert first == "False"
    assert "TrainerError the policy loss 'fibration' has no mini-batch whose coefficients it could take" in said


@pytest.mark.parametrize(
    ("module", "attribute", "words"),
    [
        ("verl.trainer.ppo.core_algos", "register_policy_loss", "Unsupported loss mode: fibration"),
        (
            "fibration.trainers.verl.loss",
            "policy_loss",
            "RuntimeError fibration's policy loss cannot be loaded: ImportError",
        ),
    ],
)
def test_a_plugin_that_cannot_load_logs_the_reason(module, attribute, words):
    """verl logs it at DEBUG; it is heard nevertheless, with what lacks, when verl is imported and when it is used."""
    made = run(WITHOUT.format(module=module, attribute=attribute) + "import verl" + LOSS)
    assert made.returncode == 0, made.stderr
    assert words in made.stdout
    assert "ERROR" in made.stderr and "loss_mode=fibration" in made.stderr and attribute in made.stderr


@pytest.mark.parametrize(
    ("module", "attribute"),
    [("verl.workers.engine_workers", "ActorRolloutRefWorker"), ("fibration.errors", "TrainerError")],
)
def test_an_import_error_is_raised_by_the_config(module, attribute):
    """The library itself too, of which no plugin of its own can tell that it fails."""
    made = run(WITHOUT.format(module=module, attribute=attribute) + CONFIG.format(name="ppo_trainer"), *OPTIONS)
    assert made.returncode != 0
    assert f"cannot import name '{attribute}'" in made.stderr


OPTIONS = (
    "actor_rollout_ref.actor.strategy=fsdp",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.actor.policy_loss._target_=fibration.trainers.verl.FibrationPolicyLossConfig",
    "actor_rollout_ref.actor.policy_loss.loss_mode=fibration",
    f"{POLICY_LOSS}.hierarchy=fiberpo_domain",
    f"{POLICY_LOSS}.parameters={{epsilon: 0.1, C_domain: {{math: {{+: 0.3, -: 0.2}}, code: 0.1}}}}",
    f"{POLICY_LOSS}.labels={{domain: [data_source, ability]}}",
    f"{POLICY_LOSS}.trajectory=[uid,session_id]",
)


def test_a_command_line_creates_the_config_and_the_worker():
    """Without entry points too, where verl is told to load none."""
    program = """
from verl.workers.engine_workers import ActorRolloutRefWorker
print(type(loss).__name__, loss.hierarchy, loss.parameters, loss.sources(), ActorRolloutRefWorker.actor_worker_cls.__name__)
print(loss.operator, loss.get("loss_mode"), actor.loss_agg_mode)
"""
    made = run(CONFIG.format(name="ppo_trainer") + program + LOSS, *OPTIONS, VERL_USE_EXTERNAL_PLUGINS="none")
    assert made.returncode == 0, made.stderr
    first, second, third = made.stdout[made.stdout.index("FibrationPolicyLossConfig") :].split("\n")[:3]
    parameters = "{'epsilon': 0.1, 'C_domain': {'math': {'+': 0.3, '-': 0.2}, 'code': 0.1}}"
    sources = "{'prompt_group': 'uid', 'domain': ['data_source', 'ability'], 'trajectory': ['uid', 'session_id']}"
    assert first == f"FibrationPolicyLossConfig fiberpo_domain {parameters} {sources} FibrationTrainingWorker"
    assert second.startswith("Operator('fiberpo_domain'") and second.endswith("fibration token-mean")
    assert "no mini-batch whose coefficients it could take" in third


def test_verls_generated_yaml_accepts_the_plugin():
    program = """
import os, verl
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass

config = OmegaConf.load(os.path.join(os.path.dirname(verl.__file__), "trainer", "config", "_generated_ppo_trainer.yaml"))
ours = {"_target_": "fibration.trainers.verl.FibrationPolicyLossConfig", "loss_mode": "fibration", "hierarchy": "gspo"}
actor = OmegaConf.merge(config.actor_rollout_ref.actor, {"policy_loss": ours, "ppo_micro_batch_size_per_gpu": 1})
config.actor_rollout_ref.actor = actor
loss = omega_conf_to_dataclass(config.actor_rollout_ref.actor).policy_loss
print(type(loss).__name__, loss.operator.hierarchy.name, loss.clip_cov_ratio)
"""
    made = run(program)
    assert made.returncode == 0, made.stderr
    assert made.stdout.strip().split("\n")[-1] == "FibrationPolicyLossConfig gspo 0.0002"
