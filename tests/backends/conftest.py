"""Fixtures that run a test on every backend of this machine."""

import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from oracles.backend_cases import BACKENDS_HERE
from ptx.emit import Emitter
from quick_triton import quicken
from support import operator as unasked
from thorough import ALL


@pytest.fixture(autouse=True, scope="session")
def quick_triton() -> Iterator[None]:
    """Kernels are interpreted without what Triton's interpreter does in vain, but for everything."""
    with pytest.MonkeyPatch.context() as patch:
        if not ALL:
            quicken(patch)
        yield


@pytest.fixture(params=BACKENDS_HERE, ids=str)
def backend(request):
    return request.param


@pytest.fixture(params=[b for b in BACKENDS_HERE if b.device == "cpu"], ids=str)
def operator(request):
    """Compiles without asking the verifier."""
    return functools.partial(unasked, backend=request.param.name)


def pytest_collection_modifyitems(items):
    """A slow backend gets the first of every five cases of a test, of every seventeen of many, and none that is long."""
    seen, many = Counter(), Counter(item.function for item in items if hasattr(item, "function"))

    def taken(item):
        of = item.callspec.params.get("operator") if hasattr(item, "callspec") else None
        if of is None or not of.slow:
            return True
        seen[item.function] += 1
        return seen[item.function] % (17 if many[item.function] > 200 else 5) == 1 and not item.get_closest_marker(
            "long"
        )

    items[:] = [item for item in items if Path(__file__).parent not in item.path.parents or taken(item)]


@pytest.fixture(scope="session")
def emitter(tmp_path_factory):
    with Emitter(tmp_path_factory.getbasetemp().parent / "ptx") as found:
        yield found
