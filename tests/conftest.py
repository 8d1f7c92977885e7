"""Deterministic property tests, an import path for helpers, and Triton's interpreter where there is no GPU."""

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:  # the cores are shared out already; read when numpy and torch are imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if {"COLUMNS", "FORCE_COLOR"} & os.environ.keys():  # some shells and runners set them: tested is what a pipe gets
    os.environ.pop("COLUMNS", None)
    os.environ.pop("FORCE_COLOR", None)

import pytest
import torch
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():  # read when triton is first imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

sys.path.insert(0, str(Path(__file__).parent))

from thorough import ALL

settings.register_profile(
    "deterministic",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=60 if ALL else 30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.load_profile("deterministic")


@pytest.fixture
def quick_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """C of hierarchies drawn at random is built as it stands, which takes a quarter of the time."""
    from fibration.backends.c.build import compiler

    if not ALL:
        monkeypatch.setenv("CC", f"{shlex.join(compiler())} -O0")


@pytest.fixture(autouse=True, scope="session")
def _decided_in_this_run() -> Iterator[None]:
    """What the laws say is what they say now: no verdict is read from the disk, where an earlier run left it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fibration.laws.kept.SOURCES", "")
        yield
