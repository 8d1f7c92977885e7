"""Options keep account of their keys."""

import math

import pytest

from fibration.configs.findings import ERROR, NOTE, WARNING, Finding, all_findings
from fibration.configs.options import Options, Table, flattened
from fibration.configs.sampling import EngineWeight, Setting, find_sampling, mean_bound
from fibration.errors import SpecError

TABLE = Table({
    "trainer": "TRL", "marks_defaults": True, "harmless": "learning_rate model.",
    "options": {
        "beta": {"is": "number", "default": 0.0},
        "heat": {"is": "number", "default": 1.0, "above": 0},
        "kind": {"is": "choice", "default": "a", "of": "a b dapo grpo"},
        "on": {"is": "flag", "default": True},
        "many": {"is": "number"},
        "steps": {"is": "whole", "default": 1},
    },
})  # fmt: skip


def options(**given):
    return Options(TABLE, given)


def test_a_given_option_is_read_before_its_default():
    o = options(beta=0.5)
    assert (o["beta"], o["kind"]) == (0.5, "a")
    assert o.is_given("beta") and not o.is_given("kind")


def test_an_unknown_option_is_an_error_with_the_nearest_known_one():
    with pytest.raises(SpecError, match="'betta' is not known") as error:
        options(betta=0.5)
    assert "did you mean 'beta'?" in str(error.value)


def test_an_option_that_does_not_touch_the_loss_is_accepted_alone_and_below_a_name():
    options(**{"learning_rate": 1, "model.path": 2})
    with pytest.raises(SpecError, match=r"'learning_rate\.x'"):
        options(**{"learning_rate.x": 1})


def test_a_key_that_is_no_text_is_an_error():
    with pytest.raises(SpecError, match="'1' is not known"):
        Options(TABLE, {1: 2})


@pytest.mark.parametrize("value", [True, "many", None, math.inf, math.nan, [1], "nan", 10**400])
def test_what_is_no_finite_number_is_an_error_that_names_the_option(value):
    with pytest.raises(SpecError, match="TRL: the option 'beta'"):
        options(beta=value)["beta"]


@pytest.mark.parametrize(("value", "number"), [(1, 1.0), ("1e-4", 1e-4), (0.5, 0.5), ("-2", -2.0)])
def test_a_number_and_a_text_that_writes_one_are_numbers(value, number):
    assert options(beta=value)["beta"] == number


def test_a_number_at_its_bound_is_an_error():
    with pytest.raises(SpecError, match="above 0"):
        options(heat=0)["heat"]


@pytest.mark.parametrize("value", [1.5, 0, "x", None, True])
def test_what_is_no_whole_number_is_an_error(value):
    with pytest.raises(SpecError, match="TRL: the option 'steps'"):
        options(steps=value)["steps"]


def test_none_is_no_number_where_that_is_allowed():
    assert options()["many"] is None and options(many="2")["many"] == 2


@pytest.mark.parametrize(("value", "flag"), [(True, True), (False, False), ("true", True), ("False", False)])
def test_a_flag_may_be_text(value, flag):
    assert options(on=value)["on"] is flag


@pytest.mark.parametrize("value", [0, 1, "yes", None])
def test_what_is_no_flag_is_an_error(value):
    with pytest.raises(SpecError, match="true or false"):
        options(on=value)["on"]


def test_another_choice_is_an_error_with_the_nearest_one():
    with pytest.raises(SpecError, match="did you mean 'dapo'"):
        options(kind="dapo_")["kind"]
    with pytest.raises(SpecError, match="one of a, b, dapo, grpo"):
        options(kind=["dapo"])["kind"]


def test_options_that_nobody_asked_for_are_known():
    o = options(beta=0.5, steps=1, kind="b")
    assert o["kind"] == "b"
    o.say_unread("kind=b")
    assert [str(each) for each in o.findings] == [
        "note: beta=0.5 has no effect with kind=b and the other options."  # `steps` has its default
    ]


def test_a_value_is_said_with_where_it_comes_from():
    assert (options(beta=0.5).said("beta"), options().said("kind")) == ("beta=0.5", "kind=a (the default)")


def test_a_mapping_without_an_end_is_an_error():
    cycle: dict[str, object] = {}
    cycle["a"] = cycle
    wide: object = 1
    for _ in range(20):
        wide = {str(i): wide for i in range(9)}
    for endless in (cycle, {"a": wide}):
        with pytest.raises(SpecError, match="have no end"):
            flattened(endless)
        with pytest.raises(SpecError, match="'a' is not known"):  # and quotes its beginning alone
            Options(TABLE, endless)


def test_a_mapping_is_flat_by_dots():
    assert flattened({"a": {"b": 1, "c": {"d": [2]}}, "e": {}}) == {"a.b": 1, "a.c.d": [2]}


def test_findings_are_the_gravest_first_and_reasons_are_graded():
    """A reason that its reader does not grade is as grave as the laws that it covers."""
    gives_up = {
        "baseline": "a",
        "first_order": "b",
        "gradient": "b",
        "kl_gradient of kl": "c",
        "causal of weight w": "d",
    }
    said = [Finding(NOTE, "around"), Finding(WARNING, "c", "beta=0"), Finding(ERROR, "worse"), Finding(WARNING, "d")]
    assert all_findings(gives_up, said) == (
        Finding(ERROR, "b", "", ("first_order", "gradient")),
        Finding(ERROR, "worse"),
        Finding(WARNING, "c", "beta=0", ("kl_gradient",)),
        Finding(WARNING, "d", "", ("causal",)),
        Finding(NOTE, "a", "", ("baseline",)),
        Finding(NOTE, "around"),
    )


# ---------------------------------------------------------------- what findings say of weights and samples


@pytest.mark.parametrize("most", [1.0, 2.0, 3.0])
def test_the_weight_of_an_answer_is_at_most_its_bound(most):
    """For two tokens all answers are added up; for normal log ratios the mean has a closed form."""
    p, q = (0.7, 0.3), (0.5, 0.5)
    b = sum(math.sqrt(x * y) for x, y in zip(p, q, strict=True))
    for length in range(1, 40):
        weights = [(math.comb(length, k) * 0.5**length, 1.4**k * 0.6 ** (length - k)) for k in range(length + 1)]
        truncated = sum(chance * min(w, most) for chance, w in weights)
        masked = sum(chance * w for chance, w in weights if w <= most)
        assert masked <= truncated <= min(1, math.sqrt(most) * b**length) + 1e-12

    def below(x):
        return (1 + math.erf(x / math.sqrt(2))) / 2

    for length in (1, 100, 512, 8192, 100_000):
        s = 0.05 * math.sqrt(length)
        mean = below((math.log(most) - s * s / 2) / s) + most * below(-(math.log(most) + s * s / 2) / s)
        assert mean <= mean_bound(length, most) + 1e-12
    assert mean_bound(8192, most) < 0.15


def test_what_is_said_of_a_kept_mass_is_so():
    """For a softmax, with the two likeliest of four tokens kept."""
    logits = (1.0, 0.5, -0.5, -2.0)
    p = [math.exp(z) / sum(map(math.exp, logits)) for z in logits]
    kept = p[0] + p[1]
    q = [x / kept for x in p[:2]] + [0.0, 0.0]
    assert all(math.isclose(x / y, kept) for x, y in zip(p[:2], q[:2], strict=True))  # a token's weight
    mean = [sum(q[k] * ((j == k) - p[j]) for k in range(4)) for j in range(4)]  # of ∇log π over what is sampled
    slope = [(p[j] * (j < 2) - kept * p[j]) / kept for j in range(4)]  # of log(kept)
    assert all(math.isclose(x, y, abs_tol=1e-15) for x, y in zip(mean, slope, strict=True)) and min(mean[:2]) > 0


def test_an_engine_whose_log_probs_are_raw_is_not_seen_by_its_weights():
    weight = EngineWeight("rollout_is=sequence", "answer", False, None, 2.0)
    (cut,) = find_sampling({"top_p": Setting("rollout.top_p", 0.9)}, 1.0, weight, is_raw=True)
    assert (cut.severity, cut.change) == (WARNING, "rollout.top_p=1") and "rollout_is=sequence does not see it" in str(
        cut
    )
    (hot,) = find_sampling({}, 0.7, weight, is_raw=True, processed="rollout.logprobs_mode=processed_logprobs")
    assert hot.severity == WARNING and hot.change.endswith("processed_logprobs")
    assert not [*find_sampling({}, 0.7, weight)] + [*find_sampling({}, 0.7, None, is_raw=True)]


@pytest.mark.parametrize(("least", "severity"), [(None, WARNING), (0.5, WARNING), (0.99, ERROR)])
def test_a_geometric_mean_has_the_kept_masses_as_a_factor(least, severity):
    weight = EngineWeight("rollout_rs=seq_mean_k1", "mean", True, least, 1.01)
    (found,) = find_sampling({"top_p": Setting("top_p", 0.9)}, 1.0, weight)
    assert found.severity == severity and "a factor, from 0.9 to 1" in found.sentence
