"""Configs in files, and the words of a command line that name them."""

import os

import pytest

from fibration.configs.files import load_config, read
from fibration.configs.specs import Spec, as_spec, as_specs
from fibration.configs.yaml_loader import load_yaml
from fibration.errors import SpecError


@pytest.fixture
def written(tmp_path):
    def write(text, name="grpo.yaml"):
        (tmp_path / name).write_text(text)
        return f"trl:{tmp_path / name}"

    return write


def default(loss, name):
    return loss.hierarchy.parameters[name].default


def test_a_number_that_yaml_reads_as_text_is_a_number(written):
    assert default(load_config(written("beta: 1e-4\nuse_bias_correction_kl: false")), "beta") == 1e-4


def test_anchors_and_comments_are_read(written):
    loss = load_config(written("epsilon: &low 0.1  # both\nepsilon_high: *low"))
    assert (default(loss, "epsilon_low"), default(loss, "epsilon_high")) == (0.1, 0.1)


def test_json_is_read(written):
    assert default(load_config(written('{"epsilon": 0.3}', "grpo.json")), "epsilon_low") == 0.3


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "nothing"),
        ("- beta", "a list"),
        ("beta", "a str"),
        ("beta: [", "stream end"),
        ("!!python/object:os.system {}", "python"),
        ("beta: 0.1\nepsilon: 0.2\nbeta: 0.3", "the key 'beta' is given twice: in line 1 and in line 3"),
        ("a: &a\n  b: *a", "the alias '*a' in line 2 is inside what it repeats"),
        (
            "a: &a [1, 1]\n" + "".join(f"{x}: &{y} [{', '.join([f'*{x}'] * 99)}]\n" for x, y in ("ab", "bc")),
            "20000 values",
        ),
        ("a: " + "[" * 51, "more than 50 levels in line 1"),
        ("beta: " + "9" * 5000, "in line 1 cannot be read as int"),
        ("a: !!timestamp 2020-99-99", "'2020-99-99' in line 1 cannot be read as timestamp"),
        ("a: 1\n---\nb: 2", "another document"),
    ],
    ids=[
        "an empty file",
        "a list",
        "a word",
        "no YAML",
        "a tag that runs code",
        "a doubled key",
        "a cycle",
        "many aliases",
        "a deep list",
        "a long number",
        "a date that is none",
        "two documents",
    ],
)
def test_what_is_no_mapping_is_an_error_that_says_what_it_is(written, text, found):
    with pytest.raises(SpecError, match=r"cannot read 'trl:") as error:
        load_config(written(text))
    assert found in str(error.value)


def test_a_file_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(SpecError, match="No such file"):
        load_config(f"trl:{tmp_path}/none.yaml")


def test_a_folder_is_an_error(tmp_path):
    with pytest.raises(SpecError, match="directory"):
        load_config(f"trl:{tmp_path}")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["a FIFO", "a device"])
def test_what_is_no_file_is_not_read(make, tmp_path):
    make(tmp_path / "a.yaml")
    with pytest.raises(SpecError, match="is a device, a pipe or a socket, and no file"):
        load_config(f"trl:{tmp_path}/a.yaml")


def test_dates_stay_text_and_merged_keys_may_be_overridden():
    text = "base: &base {beta: 0.1, gamma: 1}\nown: {<<: *base, beta: 2020-01-02}"
    assert load_yaml(text)["own"] == {"beta": "2020-01-02", "gamma": 1}


def test_bytes_that_are_no_text_are_an_error(tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="cannot read"):
        load_config(f"trl:{tmp_path}/a.yaml")


def test_a_large_file_is_an_error(tmp_path):
    (tmp_path / "a.yaml").write_text("a: 1\n" * 300_000)
    with pytest.raises(SpecError, match="at most"):
        load_config(f"trl:{tmp_path}/a.yaml")


def test_an_override_takes_the_place_of_an_option(written):
    spec = written("epsilon: 0.1\nmodel_init_kwargs: {dtype: float32}")
    loss = load_config(spec, ["epsilon=0.3", "+epsilon_high=4e-1", "model_init_kwargs.dtype=bfloat16"])
    assert (default(loss, "epsilon_low"), default(loss, "epsilon_high")) == (0.3, 0.4)


@pytest.mark.parametrize("word", ["epsilon", "=0.3"])
def test_an_override_without_a_key_or_a_value_is_an_error(written, word):
    with pytest.raises(SpecError, match="KEY=VALUE"):
        load_config(written("epsilon: 0.1"), [word])


def test_an_override_changes_no_mapping_of_the_caller(tmp_path):
    config = read_twice = {"a": {"b": 1}}
    (tmp_path / "a.yaml").write_text("a: {b: 1}")
    assert read(tmp_path / "a.yaml", "a") == config is read_twice


def test_words_with_an_equals_sign_after_a_config_belong_to_it():
    words = ["dapo", "trl:a.yaml", "beta=0", "+x.y=1", "runs/lr=1/b.py", "verl:c.yaml", "k=v", "gspo"]
    assert as_specs(words) == [
        Spec("dapo"),
        Spec("trl:a.yaml", ("beta=0", "+x.y=1")),
        Spec("runs/lr=1/b.py"),
        Spec("verl:c.yaml", ("k=v",)),
        Spec("gspo"),
    ]
    assert [s.trainer for s in as_specs(words)] == ["", "TRL", "", "verl", ""]


def test_a_word_with_an_equals_sign_after_another_spec_is_a_spec():
    assert as_specs(["dapo", "beta=0"]) == [Spec("dapo"), Spec("beta=0")]


def test_several_specs_in_the_place_of_one_are_an_error():
    with pytest.raises(SpecError, match="2 SPECs: 'dapo', 'gspo'"):
        as_spec(["dapo", "gspo"])


@pytest.mark.parametrize(
    ("spec", "text", "fix"),
    [
        ("trl:{}", "actor_rollout_ref: {rollout: {n: 8}}", "write verl:{}"),
        ("verl:{}", "loss_type: dapo", "write trl:{}"),
        ("{}", "loss_type: dapo", "write trl:{} or verl:{}"),
        ("vrl:{}", "loss_type: dapo", "write trl:{} or verl:{}"),
    ],
)
def test_a_config_under_the_wrong_name_says_which_to_write(tmp_path, spec, text, fix):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(SpecError) as caught:
        as_spec(spec.format(file)).load()
    assert fix.format(file, file) in str(caught.value)


def test_an_option_without_a_value_and_one_without_its_path_say_what_to_write(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("actor_rollout_ref: {rollout: {n: 8}}")
    with pytest.raises(SpecError, match=r"write clip_ratio_c=VALUE"):
        as_specs([f"verl:{file}", "clip_ratio_c", "dapo"])
    assert [s.name for s in as_specs([f"verl:{file}", "dapo"])] == [f"verl:{file}", "dapo"]
    with pytest.raises(SpecError, match=r"write actor_rollout_ref\.actor\.clip_ratio_c"):
        as_spec([f"verl:{file}", "clip_ratio_c=5"]).load()
