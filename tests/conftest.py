"""Settings of all tests: deterministic examples, the import path of helpers, Triton's interpreter without a GPU."""

import gc
import hashlib
import math
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores; numpy and torch read these when imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if {"COLUMNS", "FORCE_COLOR"} & os.environ.keys():  # some shells and runners set them; tests expect output to a pipe
    os.environ.pop("COLUMNS", None)
    os.environ.pop("FORCE_COLOR", None)

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers

if not torch.cuda.is_available():  # triton reads it when imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

sys.path.insert(0, str(Path(__file__).parent))

import quick_fractions
from budgets import Seconds
from thorough import ALL, left_out

CHOSEN_CC = os.environ.get("CC")

gc.set_threshold(20_000, 20, 20)  # a test makes little garbage, and many objects that the next tests use

if not ALL:
    quick_fractions.quicken()
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # compiles in less time

settings.register_profile(
    "deterministic",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=60 if ALL else 20,
    # `explain` traces a test that failed, and CPython 3.11 may then never return
    phases=[phase for phase in Phase if phase is not Phase.explain],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.load_profile("deterministic")


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:  # the main process, which receives the reports of all workers
        config.pluginmanager.register(Seconds())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.keyword or any("::" in name for name in config.args):
        return  # tests that the command line names always run
    if out := left_out(items):
        config.hook.pytest_deselected(items=out)
        left = set(map(id, out))
        items[:] = [item for item in items if id(item) not in left]


def pytest_collection_finish() -> None:
    """Freeze imported objects, so that garbage collection does not visit them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def quick_c() -> Iterator[None]:
    """Build C with -O0, in a quarter of the time. Tests that need optimised C use `shipped_c`.

    `CC` is one path to a script that stays in place, because Triton treats `CC` as a path when it builds launchers.
    """
    from fibration.backends.c.build import compiler
    from fibration.cache import entry
    from fibration.errors import BackendError

    def make(workshop: Path) -> None:
        (workshop / "cc").write_text(script)

    with pytest.MonkeyPatch.context() as patch:
        with suppress(BackendError):  # no compiler on this machine
            if not ALL:
                script = f'#!/bin/sh\nexec {shlex.join(compiler())} "$@" -O0\n'
                place = entry(f"cc-{hashlib.sha256(script.encode()).hexdigest()[:32]}", make) / "cc"
                place.chmod(0o755)
                patch.setenv("CC", str(place))
        yield


@pytest.fixture
def shipped_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build C optimised, as for users."""
    if CHOSEN_CC is None:
        monkeypatch.delenv("CC", raising=False)
    else:
        monkeypatch.setenv("CC", CHOSEN_CC)


@pytest.fixture(autouse=True, scope="session")
def _drawn_alike() -> Iterator[None]:
    """Hypothesis draws the same examples in every process: it must not read constants from imported modules."""
    with pytest.MonkeyPatch.context() as patch:
        name = "_get_local_constants"  # not in every release
        patch.setattr(providers, name, lambda: providers._local_constants, raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def _decided_in_this_run() -> Iterator[None]:
    """Verdicts are decided in this run, not read from the disk where an earlier run stored them.

    Verdicts stay in memory, because many tests verify the same hierarchies.
    """
    from fibration.laws import verify

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fibration.laws.kept.SOURCES", "")
        for kept in (verify.VERDICTS, verify.FACTS):
            patch.setattr(kept._recent, "_most", math.inf)
        yield
