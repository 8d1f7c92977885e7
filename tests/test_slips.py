"""Every slip of `slips.py` still matches one line of the library, and its test files exist."""

import pytest
from mutations import HERE, Copy
from slips import SLIPS
from telling import TELLING


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(HERE, tmp_path_factory.mktemp("copy"))


@pytest.mark.parametrize("case", TELLING)
def test_a_case_in_telling_exists(case: str) -> None:
    file, _, function = case.partition("[")[0].partition("::")
    assert f"\ndef {function}(" in (HERE / "tests" / file).read_text()


def test_slips_have_different_names() -> None:
    assert len({slip.name for slip in SLIPS}) == len(SLIPS)


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip.name)
def test_a_slip_fits_the_tree(tree: Copy, slip) -> None:
    path, text = tree.place(slip)
    assert text != tree.sources[path]
    assert tree.likely(slip)
