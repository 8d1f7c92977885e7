"""`fibration show -f python`: a file that declares the same hierarchy."""

import pytest

from fibration import Attribute, load, strata, token_mean
from fibration.language.loading import shipped
from fibration.printing.python import python


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_loss_as_python_is_that_loss(name, tmp_path):
    file = tmp_path / "loss.py"
    file.write_text(python(load(name)))
    assert load(file) == load(name)


def test_words_in_reasons_are_not_imported():
    h = load("grpo").replace(gives_up={"positivity": "quantile of 'total', \"mean\" and \\ deviation"})
    made = python(h)
    assert (
        "quantile,\n" not in made and "total,\n" not in made and "mean,\n" not in made.replace("trajectory_mean,\n", "")
    )


def test_attributes_are_declared_after_their_strata():
    (token,) = strata("token")
    entropy = Attribute("entropy", on=token, positive=False, lower=0)
    h = load("dapo").replace(objective=token_mean().keep(entropy >= 1))
    found: dict = {}
    exec(python(h), found)
    assert found["dapo"] == h and found["entropy"] == entropy
