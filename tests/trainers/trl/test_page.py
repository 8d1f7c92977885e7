"""The script of docs/trainers/trl.md runs in an empty folder, with the changes of the page."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import fibration

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "trainers" / "trl.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SCRIPT = (ROOT / "docs" / "examples" / "learn_trl.py").read_text()


def run(folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'docs/examples'}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, *arguments]
    made = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    lines = [line for line in made.stdout.splitlines() if re.match(r"\d+  ", line)]
    return [dict(re.findall(r"(\S+) (-?\d\.\d+)", line)) for line in lines]


def test_the_script_of_the_page_trains_a_fresh_and_an_off_policy_step(tmp_path):
    (tmp_path / "learn.py").write_text(SCRIPT)
    fresh, moved = run(tmp_path, "learn.py", "2")[:2]
    assert (fresh["extra_forwards"], fresh["token/clipped"], fresh["pass/changed"]) == ("0.000", "0.000", "0.000")
    assert (moved["extra_forwards"], moved["pass/changed"]) == ("3.000", "0.000")
    assert float(moved["token/clipped"]) > 0.1
    assert (tmp_path / "out").is_dir()


def test_the_script_trains_with_a_reference_model(tmp_path):
    (near,) = (block for block in BLOCKS if "from_rewards = " in block)
    (tmp_path / "near.py").write_text(near)
    (save,) = re.findall(r"^    python (-c .*save_pretrained.*)$", PAGE, re.MULTILINE)
    run(tmp_path, *shlex.split(save))
    (name,) = re.findall(r"^    (model\.config\.name_or_path = \S+)", PAGE, re.MULTILINE)
    (hierarchy,) = re.findall(r"^    (hierarchy=\S+near\.py\S+,)", PAGE, re.MULTILINE)
    script, named = re.subn(r"^(model, tokenizer = load_model\(\).*)$", rf"\1\n{name}", SCRIPT, flags=re.MULTILINE)
    script, put = re.subn(r'^( +)hierarchy="fiberpo_domain_inward",', rf"\1{hierarchy}", script, flags=re.MULTILINE)
    assert (named, put) == (1, 1)
    shown = 'print(row["step"], f"penalty {row[\'fibration/penalty/kl\']:.9f}", sep="  ")'
    (tmp_path / "learn.py").write_text(re.sub(r"print\(row\[.*", shown, script))
    fresh, moved = run(tmp_path, "learn.py", "2")[:2]
    assert (
        float(fresh["penalty"]) == 0 < float(moved["penalty"])
    )  # the reference is the model that training starts from


def test_the_script_trains_with_two_rewards_and_with_a_teacher(tmp_path):
    (brief,) = (block for block in BLOCKS if "def brief" in block)
    rewards, numbers = re.search(r"^    (reward_funcs=\[.*\],)\n    (hierarchy=.*,)$", PAGE, re.MULTILINE).groups()
    (loaded,) = re.findall(r"^    (teacher = load_model.*)$", PAGE, re.MULTILINE)
    taught, policies = re.search(r'^    (hierarchy="opd_reward".*,)\n    (policies=.*,)$', PAGE, re.MULTILINE).groups()
    own = r'^    hierarchy="fiberpo_domain_inward",.*\n    labels=.*$'
    # of the rows that are trained, where a prompt's answers all have one reward
    either = "row['fibration/kl'] if 'fibration/kl' in row else row['fibration/live/kl']"
    shown = f'print(row["step"], f"kl {{{either}:.9f}}", sep="  ")'
    script = re.sub(r"print\(row\[.*", shown, SCRIPT)
    two = script.replace("trainer = ", f"{brief}\ntrainer = ")
    two = re.sub(r"^    reward_funcs=.*$", f"    {rewards}", two, flags=re.MULTILINE)
    two, put = re.subn(own, f"    {numbers}", two, flags=re.MULTILINE)
    (tmp_path / "two.py").write_text(two)
    one, again = re.subn(own, f"    {taught}\n    {policies}", script, flags=re.MULTILINE)
    (tmp_path / "taught.py").write_text(re.sub(r"^(model, tokenizer = .*)$", rf"\1\n{loaded}", one, flags=re.MULTILINE))
    assert (put, again) == (1, 1)
    for name in ("two.py", "taught.py"):
        fresh, moved = run(tmp_path, name, "2")[:2]
        assert float(fresh["kl"]) == 0 != float(moved["kl"])


def test_the_weighted_loss_of_the_page_reads_a_number_per_line(tmp_path):
    (weighted,) = (block for block in BLOCKS if "weighted = " in block)
    (tmp_path / "weighted.py").write_text(weighted)
    h = fibration.load(f"{tmp_path / 'weighted.py'}:weighted")
    h.verify().raise_for_status()
    assert [str(a.on) for a in h.attributes.values()] == ["trajectory"]
