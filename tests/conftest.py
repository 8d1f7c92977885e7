"""Deterministic property tests, an import path for helpers, and Triton's interpreter where there is no GPU."""

import gc
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
from hypothesis.internal.conjecture import providers

if not torch.cuda.is_available():  # read when triton is first imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

sys.path.insert(0, str(Path(__file__).parent))

from thorough import ALL

gc.set_threshold(20_000, 20, 20)  # a test makes little garbage, and much that stays for the next

settings.register_profile(
    "deterministic",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=60 if ALL else 20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.load_profile("deterministic")


def pytest_collection_finish() -> None:
    """What is imported stays, and need not be looked through for garbage again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def _as_it_stands(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A compiler that does not optimise, as one word: Triton takes `CC` for a path, where it builds its launchers."""
    from fibration.backends.c.build import compiler

    script = tmp_path_factory.mktemp("compiler") / "cc"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(compiler())} "$@" -O0\n')
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def quick_c(monkeypatch: pytest.MonkeyPatch, _as_it_stands: str) -> None:
    """C of hierarchies drawn at random is built as it stands, which takes a quarter of the time."""
    if not ALL:
        monkeypatch.setenv("CC", _as_it_stands)


@pytest.fixture(autouse=True, scope="session")
def _drawn_alike() -> Iterator[None]:
    """What is drawn does not depend on the modules that a process has met: hypothesis would read all for constants."""
    with pytest.MonkeyPatch.context() as patch:
        name = "_get_local_constants"  # not in every release
        patch.setattr(providers, name, lambda: providers._local_constants, raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def _decided_in_this_run() -> Iterator[None]:
    """What the laws say is what they say now: no verdict is read from the disk, where an earlier run left it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fibration.laws.kept.SOURCES", "")
        yield
