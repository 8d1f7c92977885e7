"""Finding hierarchies: shipped ones by name, and the files of a folder and its subfolders."""

from pathlib import Path

import pytest

from fibration import SpecError, load
from fibration.errors import NoHierarchy
from fibration.language.loading import load_all, shipped, shipped_file, spec_files, variables_of

SPECS = Path(__file__).resolve().parents[2] / "specs"


def test_shipped_names_are_unique_over_all_files():
    files = [f for f in SPECS.rglob("*.py") if f.name != "__init__.py"]
    declared = [h.name for f in files for h in load_all(f)]
    assert sorted(declared) == list(shipped())
    assert {f.resolve() for f in files} == {shipped_file(n).resolve() for n in shipped()}


def test_a_shipped_hierarchy_has_the_name_of_its_variable():
    assert [load(name).name for name in shipped()] == list(shipped())


def test_a_loss_is_printed_with_its_own_variables_where_its_file_has_others_of_that_name():
    """`dapo` has another parameter `epsilon_high` than `ppo`, in one file."""
    for name, variable in (("ppo", "high"), ("dapo", "dapo_high")):
        assert variables_of(load(name))["epsilon_high"] == variable


@pytest.fixture
def folder(tmp_path):
    for name in ("b", "deep/deeper/a", "deep/c", "_kept/no", ".hidden/no", "deep/_no"):
        file = tmp_path / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(load("ppo").replace(name=file.stem.strip("_")).model_dump_json())
    (tmp_path / "deep" / "again").symlink_to(tmp_path)
    (tmp_path / "deep" / "page.md").write_text("no spec")
    return tmp_path


def test_a_folder_includes_the_specs_of_its_subfolders(folder):
    found = [str(Path(f).relative_to(folder)) for f in spec_files(folder)]
    assert found == ["b.json", "deep/c.json", "deep/deeper/a.json"]
    assert [h.name for h in load_all(folder)] == ["b", "c", "a"]


def test_a_folder_without_specs_is_an_error(folder):
    (folder / "empty" / "deep").mkdir(parents=True)
    with pytest.raises(NoHierarchy, match="holds no spec"):
        spec_files(folder / "empty")


def test_a_name_is_a_variable_or_that_of_a_hierarchy(tmp_path):
    text = 'from fibration import load\na = load("grpo").replace(name="first")\nb = load("dapo").replace(name="a")\n'
    path = tmp_path / "two.py"
    path.write_text(text + 'c = load("ppo").replace(name="same")\nd = load("gspo").replace(name="same")\n')
    assert load(f"{path}:first").name == load(f"{path}:a").name == "first"  # a variable comes first
    with pytest.raises(SpecError, match=r"2 hierarchies called 'same'(?s:.*)name the variable: .*two.py:c"):
        load(f"{path}:same")
    with pytest.raises(SpecError, match="did you mean 'first'"):
        load(f"{path}:frist")


@pytest.mark.parametrize(
    ("typed", "meant"), [("gpro", "grpo"), ("GRPO", "grpo"), ("dr-grpo", "dr_grpo"), ("DAPO", "dapo")]
)
def test_one_shipped_loss_is_suggested_for_a_slip(typed, meant):
    with pytest.raises(SpecError) as caught:
        load(typed)
    assert caught.value.remedy == f"did you mean '{meant}'?"


def test_a_spec_that_exits_is_told_what_to_do(tmp_path):
    (tmp_path / "ends.py").write_text("raise SystemExit\n")
    with pytest.raises(SpecError) as caught:
        load(tmp_path / "ends.py")
    assert caught.value.found == "SystemExit (line 1)"
    assert "under if __name__ == '__main__'" in caught.value.remedy
