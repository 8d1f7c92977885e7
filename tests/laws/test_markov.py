"""The weights of kernels are defined and not negative, on every fibre."""

import pytest
from hierarchies.additive_kernels import CHAIN, over
from hierarchies.builders import token, weight
from oracles import quiver_verdicts, verdicts
from oracles.certified_facts import decided
from thorough import some

from fibration import Parameter, absolute, count, exp, maximum, minimum, total, where

share = Parameter("share", default=0.3, upper=1)


@pytest.mark.sampled
@verdicts.wrong_specs("markov")
def test_wrong_specs_are_refused(name):
    verdicts.refused(name)


@quiver_verdicts.wrong_quivers("markov")
def test_wrong_quivers_are_refused(name):
    quiver_verdicts.refused(name)


def test_a_weight_that_may_be_0_is_not_proved():
    """It is not negative, but other laws divide by the measure, which may be 0."""
    levels = CHAIN[:2]
    n = count(token, over=levels[1])
    verdict = decided(over(levels, [(n - 1) / (n * n)]), "markov")[0]
    assert verdict.status == "undecided"


BENT = (
    lambda n, m, w, all_w: 1 / (n + 1),
    lambda n, m, w, all_w: 1 / n + (n - 1) * (n - 2) / n,
    lambda n, m, w, all_w: where(n <= 2, 1 / n, 1 / (n - 1)),
    lambda n, m, w, all_w: where(n > 3, w / all_w, 1 / n),
    lambda n, m, w, all_w: where(w > 1, w / all_w, 1 / n),
    lambda n, m, w, all_w: where(all_w > 2, w / all_w, 1 / n),
    lambda n, m, w, all_w: w * w / (all_w * all_w),
    lambda n, m, w, all_w: w * w * n / (all_w * all_w),
    lambda n, m, w, all_w: share * w / all_w + (1 - share) / n,
    lambda n, m, w, all_w: share * w / all_w + (1 - share * share) / n,
    lambda n, m, w, all_w: 2 * w / all_w - 1 / n,
    lambda n, m, w, all_w: 1 / n + (w - all_w / n) * share,
    lambda n, m, w, all_w: 1 / n + (w - all_w / n) / (all_w * n),
    lambda n, m, w, all_w: (1 - w / all_w) / (n - 1),
    lambda n, m, w, all_w: where(n < 2, 1, (1 - w / all_w) / (n - 1)),
    lambda n, m, w, all_w: where(n <= 1, 1 + 0 * w, (1 - w / all_w) / (n - 1 + 0 * w)),
    lambda n, m, w, all_w: absolute(w - all_w / n) / n,
    lambda n, m, w, all_w: maximum(w / all_w, 1 / n),
    lambda n, m, w, all_w: minimum(w / all_w, 1 / n) + maximum(0 * w, 0),
    lambda n, m, w, all_w: exp(w) / n,
    lambda n, m, w, all_w: (w + m) / (all_w + m * n),
    lambda n, m, w, all_w: (w - m) / (all_w - m * n),
    lambda n, m, w, all_w: w / all_w / (share / share),
    lambda n, m, w, all_w: 1 / (all_w / w),
    lambda n, m, w, all_w: 1 / n / (1 + 1 / n) * (n + 1) / n,
    lambda n, m, w, all_w: (w * n) / (all_w * n) * (1 + share) / (1 + share),
)


def bent(form, level):
    """A chain whose coarsest kernel is a polynomial, a branch or a mixture, with a parameter."""
    levels = CHAIN[: level + 2]
    source, target = levels[-2:]
    w = weight if source == token else total(weight, over=source)
    n, m = count(source, over=target), Parameter("level", default=0.5)
    kernels = [1 / count(a, over=b) for a, b in zip(levels[:-2], levels[1:-1], strict=True)]
    return over(levels, [*kernels, BENT[form](n, m, w, total(weight, over=target))])


KERNELS = {f"{form} on {level}": bent(form, level) for form in range(len(BENT)) for level in range(3)}


@pytest.mark.sampled
@pytest.mark.parametrize("name", some(KERNELS, 3))
def test_counterexamples_of_unusual_kernels_hold(name):
    verdicts.counterexamples_hold(KERNELS[name], KERNELS[name].verify())
