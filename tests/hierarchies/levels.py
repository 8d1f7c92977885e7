"""Hierarchies of one level and of two, with given gates."""

from support import token, trajectory

from fibration import Fibration, Hierarchy, count, log_ratio, token_mean, trajectory_mean, uniform


def one_level(gate, **changes):
    arguments = dict(name="one", gates={token: gate}, decomposition=log_ratio(), objective=token_mean())
    return Hierarchy(**{**arguments, **changes})


def two_levels(coarse, fine, decomposition=None, **changes):
    arguments = dict(
        name="two",
        fibrations=[Fibration(token, trajectory, kernel=uniform())],
        gates={trajectory: coarse, token: fine},
        decomposition=decomposition or log_ratio(scale=1 / count(token, over=trajectory)),
        objective=trajectory_mean(),
    )
    return Hierarchy(**{**arguments, **changes})
