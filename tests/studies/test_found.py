"""What a search has found: the best of each kind at each rate."""

import json

import choose
from plan import BETWEEN, SEARCH


def test_each_kind_has_its_best_at_each_rate():
    def line(arm, lr, trust, right):
        run = {"arm": arm, "lr": lr, "trust": trust, "condition": "unequal"}
        return [{"run": {**run, "seed": s}, "measured": {"right": [[right + s % 2] * 4] * 3}} for s in SEARCH]

    small, large = BETWEEN
    said = json.loads(
        choose.record_search(
            line("clip_domain", small, 1.0, 20)
            + line("gspo_domain", small, 2.0, 30)
            + line("gspo_domain", large, 1.0, 10)
            + line("smooth_domain", large, 0.5, 11)
            + line("dapo", small, 0.5, 40)
            + line("sapo", small, 0.5, 39)
            + line("sapo", large, 2.0, 9)
            + line("dapo", large, 1.0, 50)[:-1]  # a seed lacks: no score
        )
    )
    assert said == {
        "best": {"gspo_domain": {"lr": small, "trust": 2.0}, "dapo": {"lr": small, "trust": 0.5}},
        "large": {"smooth_domain": {"lr": large, "trust": 0.5}, "sapo": {"lr": large, "trust": 2.0}},
    }
