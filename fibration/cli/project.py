"""`fibration init`: writes a new project, with a loss whose laws hold, a test of it, and CI."""

from __future__ import annotations

from pathlib import Path

from fibration.errors import BackendError, FibrationError
from fibration.escaping import one_line
from fibration.files import unwritable, write_file

SPEC = '''"""A loss of your own: PPO's clip of every token, and a capped weight for the engine that samples.

Change it, then run: fibration show specs/my_loss.py, fibration verify specs/
"""

from fibration import (
    Hierarchy,
    Parameter,
    exp,
    log_prob,
    minimum,
    pessimistic_clip_gate,
    policies,
    ratio_deviation,
    strata,
    token_mean,
)

(token,) = strata("token")
old, rollout = policies("old rollout")
low = Parameter("epsilon_low", default=0.2, upper=1)  # at 1 or more this bound would never bind
high = Parameter("epsilon_high", default=0.28)
cap = Parameter("C", default=2.0, lower=1)
mismatch = exp(log_prob(old) - log_prob(rollout))  # the trainer's probability by the engine's

my_loss = Hierarchy(
    name="my_loss",
    gates={token: pessimistic_clip_gate(low, high)},
    decomposition=ratio_deviation(),  # the gate acts on ratio - 1
    objective=token_mean().weigh(minimum(mismatch, cap)),  # truncated importance sampling
)
'''

TEST = '''"""Tests of the loss on a small batch. pytest.ini adds the laws, which hold for every batch."""

from pathlib import Path

import pytest
import torch

import fibration

OFFSETS = torch.tensor([0, 3, 5])  # a trajectory of 3 tokens, and one of 2
ADVANTAGES = torch.tensor([1.0, -1.0])
OLD = torch.full((5,), -1.0)


@pytest.fixture(scope="module")
def op():
    return fibration.compile(fibration.load(Path(__file__).parents[1] / "specs" / "my_loss.py"))


def coefficients(op, log_ratio, rollout=OLD):
    """The derivative of the objective by each token's log-prob."""
    index, policies = op.index(offsets=OFFSETS), {"rollout": rollout}
    return op.coefficients(OLD + log_ratio, OLD, ADVANTAGES, index, policies=policies).values


def test_on_policy_it_is_the_plain_policy_gradient(op):
    expected = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0]) / 5  # advantage / tokens of the batch
    torch.testing.assert_close(coefficients(op, torch.zeros(5)), expected)


def test_a_token_beyond_its_bound_is_pushed_no_further(op):
    found = coefficients(op, torch.tensor([0.5, -0.5, 0.0, -0.5, 0.5]))
    assert found[0] == found[3] == 0  # their advantage would push them further out
    assert found[1] > 0 > found[4]  # theirs brings them back


def test_the_weight_of_a_token_is_capped(op):
    far = OLD - torch.tensor([0.0, 9.0, 0.0, 9.0, 0.0])  # the engine gave two tokens e**-9 of their probability
    torch.testing.assert_close(
        coefficients(op, torch.zeros(5), far), torch.tensor([1.0, 2.0, 1.0, -2.0, -1.0]) / 5
    )
'''

CONFIGURATION = """[pytest]
fibration_specs = specs/
"""

WORKFLOW = """name: laws
on: [push, pull_request]
jobs:
  laws:
    runs-on: ubuntu-latest
    env:
      FIBRATION: ${{ vars.FIBRATION }}  # what pip installs: git+URL@COMMIT of its repository, or the URL of a wheel
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - run: pip install "$FIBRATION" pytest
      - run: fibration verify specs/ --format github
      - run: fibration verify specs/ --format markdown >> "$GITHUB_STEP_SUMMARY"
        if: always()
      - run: fibration report specs/
        if: always()
      - uses: actions/upload-artifact@v4
        if: always()
        with:
          name: losses
          path: report.html
      - run: python -m pytest
"""

PYTEST = "pytest.ini"
FILES = {
    "specs/my_loss.py": (SPEC, "a loss: put your own in its place"),
    "tests/test_my_loss.py": (TEST, "a test of the loss on a small batch"),
    PYTEST: (CONFIGURATION, "pytest then tests every loss in specs/"),
    ".github/workflows/laws.yml": (WORKFLOW, "GitHub runs the checks on every push"),
}
CONFIGURED = {"pytest.ini": "", "pyproject.toml": "tool.pytest", "tox.ini": "[pytest]", "setup.cfg": "tool:pytest"}


def init(folder: Path) -> str:
    """Write the files of a new project. Returns the text to print.

    Raises BackendError if one of the files exists, and FibrationError if the folder is not writable; both before the
    first file is written.
    """
    configured = next((n for n, words in CONFIGURED.items() if _holds(folder / n, words)), None)
    files = {name: texts for name, texts in FILES.items() if name != PYTEST or not configured}
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise BackendError(
            f"the folder '{folder}' holds {', '.join(there)} already",
            required="a folder without them: nothing is overwritten, and nothing was written",
            remedy="name another one: fibration init DIR",
        )
    found = next((why for name in files if (why := unwritable((folder / name).parent))), "")
    if found:
        raise FibrationError(
            f"a project cannot be written to '{folder}'", required="a folder that can be written to", found=found
        )
    for name, (contents, _) in files.items():
        write_file(folder / name, contents)
    width = max(map(len, files))
    lines = [f"  {name:{width}}  {meaning}" for name, (_, meaning) in files.items()]
    if configured:
        specs = '["specs/"]' if configured.endswith(".toml") else "specs/"
        lines.append(f"{configured} configures pytest: add fibration_specs = {specs} to its section for pytest")
    go = [] if folder.resolve() == Path.cwd() else [f"  cd {one_line(folder)}"]
    return "\n".join([f"written to {one_line(folder)}:", *lines, "next:", *go, *(f"  {line}" for line in NEXT)])


NEXT = (
    "fibration verify specs/             proves or refutes the laws, for batches of every size",
    "python -m pytest                    runs the laws as tests, and your own tests",
    "fibration run specs/my_loss.py      applies the loss to recorded rollouts; pictures in out/",
    "in CI, set the variable FIBRATION   to the argument of pip install: git+URL@COMMIT of fibration, or a wheel's URL",
)


def _holds(file: Path, words: str) -> bool:
    return file.is_file() and words in file.read_text(errors="replace")
