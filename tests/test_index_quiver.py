"""Indices of trees and quivers: leaves, labels, what is checked on data, and the projection of crossed strata."""

import math
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_bad_input import refuses

import fibration.checks as checks_module
import fibration.projection as projection_module
from fibration import (
    Attribute,
    BatchError,
    Fibration,
    Hierarchy,
    HierarchyIndexError,
    MarkovKernel,
    Parameter,
    SpecError,
    balanced,
    count,
    identity_gate,
    log_ratio,
    populated,
    proportional,
    strata,
    total,
    trajectory_mean,
    uniform,
)
from fibration.batch import Batch, inputs_of
from fibration.checks import check
from fibration.indexing import build_index
from fibration.inputs import make_batch
from fibration.ir import Input, Mix
from fibration.measure import Measure
from fibration.symbols import Stratum

token, text, image, turn, expert = strata("token text image turn expert")
trajectory, domain, modality, family, batch = strata("trajectory domain modality family batch")
N = count(token)
W = Attribute("weight", on=token)
SIGNED = Attribute("signed", on=token, positive=False)


def hierarchy(*edges, kernel=None, kernels=None, **more):
    """`edges` as `"text -> turn"`; kernels by edge, or one for all."""
    fibrations = []
    for edge in edges:
        source, target = map(Stratum, edge.split(" -> "))
        fibrations.append(Fibration(source, target, (kernels or {}).get(edge) or kernel or uniform()))
    found = dict.fromkeys(s for f in fibrations for s in (f.source, f.target))
    return Hierarchy(
        name="h", fibrations=fibrations, gates={s: identity_gate() for s in found},
        decomposition=log_ratio(), objective=trajectory_mean(), **more,
    )  # fmt: skip


def index(h, mask=None, offsets=None, attributes=None, **labels):
    return build_index(h, mask=mask, offsets=offsets, attributes=attributes, labels=labels)


TREE = hierarchy("text -> turn", "turn -> trajectory", "image -> trajectory", "trajectory -> domain")
CROSSED_EDGES = (
    "token -> trajectory",
    "trajectory -> domain",
    "trajectory -> modality",
    "domain -> batch",
    "modality -> batch",
)
FAMILY_EDGES = (
    "token -> trajectory",
    "trajectory -> domain",
    "trajectory -> modality",
    "domain -> family",
    "modality -> family",
)
BESIDE_EDGES = ("token -> trajectory", "token -> expert", "trajectory -> batch", "expert -> batch")


def crossed(**more):
    """domain x modality over the batch, in the measure that counts tokens."""
    kernels = {"token -> trajectory": uniform()}
    return hierarchy(*CROSSED_EDGES, kernels=kernels, kernel=proportional(N), **more)


# ---------------------------------------------------------------- leaves

MASK = torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 0, 1]])
IMAGE = torch.tensor([[0, 1, 0, 1], [1, 1, 1, 1], [1, 0, 1, 1]])  # also where the mask says no
TURN = [[5, None, 6, None], [None] * 4, [math.nan, 7, None, None]]


def tree(**changes):
    return index(TREE, **{"mask": MASK, "image": IMAGE, "turn": TURN, "domain": ["m", None, "c"], **changes})


def lists(parents):
    return {k: v.tolist() for k, v in parents.items()}


def test_a_tree_by_hand():
    i = tree()
    assert i.leaves == ("text", "image")
    assert i.positions.tolist() == [0, 1, 2, 8, 9, 11]
    assert i.row_of_token.tolist() == [0, 0, 0, 1, 1, 1]
    assert dict(i.size) == {"text": 3, "image": 3, "turn": 3, "trajectory": 2, "domain": 2, "batch": 1}
    assert i.tokens_of("text").tolist() == [0, 2, 4]
    assert i.tokens_of("image").tolist() == [1, 3, 5]
    assert i.positions_of("text").tolist() == [0, 2, 9]
    assert i.positions_of("image").tolist() == [1, 8, 11]
    assert i.rows_of_tokens("image").tolist() == [0, 1, 1]
    assert lists(i.parents) == {
        ("text", "turn"): [0, 1, 2],
        ("turn", "trajectory"): [0, 0, 1],
        ("image", "trajectory"): [0, 1, 1],
        ("trajectory", "domain"): [0, 1],
    }
    assert i.parent("text", "trajectory").tolist() == [0, 0, 1]
    assert i.parent("text", "domain").tolist() == [0, 0, 1]
    assert i.parent("image", "batch").tolist() == [0, 0, 0]
    assert i.count("image", "domain").tolist() == [1, 2]
    assert i.count("text", "trajectory").tolist() == [2, 1]
    assert i.count("text", "batch").tolist() == [3]
    assert i.leaves_over("turn") == ("text",)
    assert i.leaves_over("domain") == i.leaves_over("batch") == ("text", "image")
    assert i.labels == {"turn": (5, 6, 7), "trajectory": (0, 2), "domain": ("m", "c")}
    assert i.rows_of("turn").tolist() == [0, 0, 2]
    assert i.rows_of("domain").tolist() == [0, 2]
    assert i.describe_token(5) == "token [2, 3] of trajectory 2"
    assert i.describe_element("image", 1) == "token [2, 0] of trajectory 2"
    assert i.describe_element("domain", 1) == "domain 'c'"
    refuses(HierarchyIndexError, lambda: i.parent("image", "turn"), what="'image' does not lie over 'turn'")
    refuses(HierarchyIndexError, lambda: i.tokens_of("turn"), what="'turn' is no leaf", required="text, image")


def test_layouts_of_a_tree():
    i = tree()
    image_rows = i.layout("trajectory", "image")
    assert image_rows.offsets.tolist() == [0, 1, 3]
    assert image_rows.positions.tolist() == [1, 8, 11]
    assert image_rows.tokens is None
    turns = i.layout("turn", "text")
    assert turns.offsets.tolist() == [0, 1, 2, 3]
    assert turns.starts.tolist() == [0, 2, 9]
    assert turns.positions is None  # whole: other leaves' tokens lie between
    assert (turns.longest, turns.total, turns.count) == (1, 3, 3)
    refuses(HierarchyIndexError, lambda: i.layout("trajectory"), what="without a leaf", required="text, image")
    refuses(HierarchyIndexError, lambda: i.layout("turn", "image"), what="'image' does not lie over 'turn'")


def test_segments_without_tokens_and_out_of_order():
    h = hierarchy("text -> trajectory", "image -> trajectory", "trajectory -> domain")
    i = index(h, offsets=[0, 2, 3, 5], text=[1, 1, 0, 1, 0], domain=["b", "a", "b"])
    rows = i.layout("trajectory", "text")
    assert rows.offsets.tolist() == [0, 2, 2, 3]
    assert rows.starts[[0, 2]].tolist() == [0, 3]
    assert rows.positions is None
    assert (rows.longest, rows.total, rows.count) == (2, 3, 3)
    i = index(h, offsets=[0, 1, 2, 4], text=[1, 0, 1, 0], domain=["b", "a", "b"])
    segments = i.layout("domain", "image")
    assert segments.offsets.tolist() == [0, 1, 2]
    assert segments.starts.tolist() == [3, 1]
    assert segments.positions is None
    assert segments.tokens.tolist() == [1, 0]
    assert i.count("image", "trajectory").tolist() == [0, 1, 1]
    no_images = index(h, offsets=[0, 2], text=[1, 1], domain=["b"])
    assert no_images.size["image"] == 0
    assert no_images.layout("trajectory", "image").offsets.tolist() == [0, 0]
    assert no_images.layout("trajectory", "image").longest == 0
    assert no_images.parent("image", "domain").tolist() == []
    assert no_images.members("image", "trajectory").offsets.tolist() == [0, 0]


def test_one_leaf_is_as_it_was():
    i = index(hierarchy("token -> trajectory"), mask=torch.tensor([[1, 1, 0], [1, 0, 0]]))
    assert i.leaves == ("token",)
    assert i.tokens_of("token") is None
    assert i.positions_of("token") is i.positions
    assert i.layout("trajectory") is i.layout("trajectory", "token")
    assert i.layout("trajectory").positions is None


def test_padded_and_packed_agree():
    padded = tree()
    keep = MASK.bool().reshape(-1)
    offsets = [0, 3, 3, 6]
    turns = [t for line in TURN for t in line]
    packed = tree(
        mask=None, offsets=offsets, image=IMAGE.reshape(-1)[keep], turn=[turns[p] for p in padded.positions.tolist()]
    )
    assert lists(packed.parents) == lists(padded.parents)
    assert packed.labels == padded.labels
    assert packed.positions_of("image").tolist() == [1, 3, 5]
    text_too = tree(text=~IMAGE.bool())
    assert lists(text_too.parents) == lists(padded.parents)
    for leaf in ("text", "image"):
        assert text_too.tokens_of(leaf).tolist() == padded.tokens_of(leaf).tolist()


LEAVES = {
    "no masks": ({"image": None}, dict(what="no masks for 'text' and 'image'", required="all of text, image but one", remedy="pass text=")),
    "shape": ({"image": IMAGE[:2]}, dict(what="the mask of 'image' has shape [2, 4]", required="[3, 4]")),
    "values": ({"image": IMAGE * 2}, dict(what="the mask of 'image' holds values other than 0 and 1")),
    "two": ({"text": 1 - IMAGE | (torch.arange(12).reshape(3, 4) == 11)}, dict(what="token [2, 3] is in two leaves: 'text' and 'image'", remedy="leave one")),
    "none": ({"text": (1 - IMAGE) * (torch.arange(12).reshape(3, 4) != 2)}, dict(what="token [0, 2] is a token without a leaf", required="one of text, image")),
    "unknown": ({"audio": IMAGE}, dict(what="unknown label 'audio'", required=("labels for domain, turn", "masks for text, image"), found="{text → turn, turn → trajectory, image → trajectory, trajectory → domain}")),
}  # fmt: skip


@pytest.mark.parametrize("name", LEAVES)
def test_masks_of_leaves_that_do_not_fit(name):
    changes, expected = LEAVES[name]
    refuses(HierarchyIndexError, lambda: tree(**changes), **expected)


def test_rows_over_which_not_every_leaf_lies():
    """They are elements of the hierarchy, and means over them need something to lie over each."""
    h = hierarchy("text -> trajectory", "trajectory -> domain", "image -> domain")
    i = index(h, offsets=[0, 2, 4], text=[1, 0, 1, 0], domain=["a", "b"])
    assert i.parents["image", "trajectory"].tolist() == [0, 1]  # for the objective
    assert i.count("text", "trajectory").tolist() == [1, 1]
    refuses(
        HierarchyIndexError, lambda: index(h, offsets=[0, 2, 4], text=[1, 0, 0, 0], domain=["a", "b"]),
        what="nothing lies over trajectory 1", required="text",
    )  # fmt: skip
    rows = hierarchy("text -> trajectory", "image -> trajectory", rows=text)
    refuses(
        HierarchyIndexError,
        lambda: index(rows, offsets=[0, 2], image=[1, 0], trajectory=["a"]),
        what="the rows are 'text'",
    )


# ---------------------------------------------------------------- labels of some tokens, and of labels


@pytest.mark.parametrize("make", [torch.tensor, np.array, list])
def test_a_negative_number_is_no_label_of_a_token(make):
    """-1 and -100 mean none in most data, and would be an element of their own."""
    h = hierarchy(*BESIDE_EDGES)
    rule = dict(required="negative numbers mean none", remedy="leave the token out of the response mask")
    refuses(
        HierarchyIndexError, lambda: index(h, mask=[[1, 1], [0, 1]], expert=make([[0, 1], [-100, -1]])),
        what="token [1, 1] has the label -1 for 'expert'", **rule,
    )  # fmt: skip
    refuses(
        HierarchyIndexError, lambda: index(h, offsets=[0, 2, 3], expert=make([0, -100, 2])),
        what="token [1] has the label -100 for 'expert'", **rule,
    )  # fmt: skip
    refuses(HierarchyIndexError, lambda: index(h, offsets=[0, 1, 2], expert=make([0, -1])), what="token [1]", **rule)
    masked = index(h, mask=[[1, 1], [0, 1]], expert=make([[0, 1], [-100, 0]]))
    assert masked.labels["expert"] == (0, 1)
    rows = index(h, mask=[[1, 1], [0, 1]], expert=make([-5, -7]))  # per row: a hash may be negative
    assert rows.labels["expert"] == (-5, -7)


def test_a_stratum_beside_the_rows():
    h = hierarchy(*BESIDE_EDGES)
    i = index(h, mask=[[1, 1], [0, 1]], expert=[["e", "f"], [None, "e"]])
    assert i.parent("token", "expert").tolist() == [0, 1, 0]
    assert i.parent("token", "trajectory").tolist() == [0, 0, 1]
    assert i.rows_of("expert") is None  # an expert sees both rows
    assert i.rows_of("trajectory").tolist() == [0, 1]
    refuses(HierarchyIndexError, lambda: i.parent("expert", "trajectory"), what="does not lie over")
    # as many tokens as rows: labels that mean the same either way are fine, others are not guessed at
    square = index(h, offsets=[0, 1, 2], expert=["e", "f"])
    assert square.parent("token", "expert").tolist() == [0, 1]
    assert index(h, offsets=[0, 2, 2], expert=["e", "e"]).parent("token", "expert").tolist() == [0, 0]
    refuses(
        HierarchyIndexError, lambda: index(h, offsets=[0, 2, 2], expert=["e", "f"]),
        what="2 labels for 'expert' may be per token or per row", found="'f' and 'e' for token [1]",
    )  # fmt: skip
    refuses(HierarchyIndexError, lambda: index(h, mask=[[1, 1]]), required="expert=[one label per token, shape [1, 2]]")
    refuses(
        HierarchyIndexError,
        lambda: index(h, mask=[[1, 1, 1, 0], [1, 1, 0, 1]], expert=[["e", "e", "f", None], ["e", "f", "e", None]]),
        what="token [1, 3] has no label for 'expert'", required="exactly one expert",
    )  # fmt: skip


def test_an_expert_of_text_alone():
    h = hierarchy("text -> expert", "text -> trajectory", "image -> trajectory")
    i = index(h, mask=[[1, 1], [1, 0]], image=[[0, 1], [0, 0]], expert=[["e", None], ["f", None]])
    assert i.size["expert"] == 2
    assert i.parent("text", "expert").tolist() == [0, 1]
    refuses(
        HierarchyIndexError,
        lambda: index(h, mask=[[1, 1], [1, 0]], image=[[1, 0], [0, 0]], expert=[["e", None], ["f", None]]),
        what="token [0, 1] has no label for 'expert'",
    )
    per_row = hierarchy("text -> domain", "image -> modality")
    i = index(per_row, mask=[[1, 1], [1, 0]], image=[[1, 1], [0, 0]], domain=[None, "d"], modality=["m", None])
    assert i.parent("text", "domain").tolist() == [0]
    assert i.parent("image", "modality").tolist() == [0, 0]
    assert i.parent("image", "trajectory").tolist() == [0, 0]
    assert i.parent("domain", "trajectory").tolist() == [1]  # every domain is inside one row
    refuses(
        HierarchyIndexError,
        lambda: index(per_row, mask=[[1, 1], [1, 0]], image=[[1, 1], [0, 0]], domain=["d", None], modality=["m", None]),
        what="row 1 has no label for 'domain'",
    )


def test_a_row_label_says_nothing_about_tokens_of_other_leaves():
    h = hierarchy("text -> domain", "domain -> family", "image -> trajectory")
    i = index(h, mask=torch.ones(2, 2), image=[[0, 1], [1, 0]], domain=["d", "e"], family=[["f", None], ["h", "g"]])
    assert i.parents["domain", "family"].tolist() == [0, 1]
    assert i.labels["family"] == ("f", "g")


ROWS = {"domain": ["math", "code", "math", "art"], "modality": ["text", "text", "image", "image"]}
MAPS = {"domain": {"math": "stem", "code": "stem", "art": "arts"}, "modality": {"text": "stem", "image": "stem"}}


def families(h=None, **changes):
    labels = {**ROWS, "family": MAPS, **changes}
    return index(h or hierarchy(*FAMILY_EDGES), offsets=[0, 2, 3, 5, 6], **labels)


def test_labels_of_labels():
    h = hierarchy(*FAMILY_EDGES)
    good = {**ROWS, "domain": ["math", "code", "math", "code"]}
    mapped = families(**good)
    assert mapped.parents["domain", "family"].tolist() == [0, 0]
    assert mapped.labels["family"] == ("stem",)
    per_row = index(h, offsets=[0, 2, 3, 5, 6], **good, family=["stem"] * 4)
    assert lists(mapped.parents) == lists(per_row.parents)
    chain = hierarchy("token -> trajectory", "trajectory -> domain", "domain -> family", "family -> modality")
    i = index(
        chain, offsets=[0, 1, 2, 3], trajectory=["r", "s", "t"], domain={"r": "x", "s": "y", "t": "z"},
        family={"x": 2, "y": 1, "z": torch.tensor(2), "unused": 7}, modality={1: "m", 2: "m"},
    )  # fmt: skip
    assert i.labels == {"trajectory": ("r", "s", "t"), "domain": ("x", "y", "z"), "family": (2, 1), "modality": ("m",)}
    assert i.parents["domain", "family"].tolist() == [0, 1, 0]
    assert i.parents["family", "modality"].tolist() == [0, 0]


def test_numbers_of_mapped_labels_follow_the_tokens():
    h = hierarchy("text -> turn", "turn -> family", "image -> domain", "domain -> family")
    turns, domains = [["t", None, "u"], ["v", None, None]], [[None, "d", None], [None, "e", "d"]]
    i = index(
        h, mask=[[1, 1, 1], [1, 1, 1]], text=[[1, 0, 1], [1, 0, 0]], turn=turns, domain=domains,
        family={"turn": {"t": "c", "u": "b", "v": "c"}, "domain": {"d": "a", "e": "b"}},
    )  # fmt: skip
    assert i.labels["family"] == ("c", "a", "b")
    assert i.parents["turn", "family"].tolist() == [0, 2, 0]
    assert i.parents["domain", "family"].tolist() == [1, 2]


MAPPINGS = {
    "paths": (
        {},
        dict(
            what=("trajectory 3 lies over family 'arts' by way of domain 'art'", "over 'stem' by way of modality 'image'"),
            required="all paths agree", remedy="mend one of the mappings for 'family'",
        ),
    ),
    "paths, the other way": (
        {"domain": ["art", "code", "math", "code"], "modality": ["text", "image", "image", "image"]},
        dict(what=("trajectory 0 lies over family 'arts' by way of domain 'art', and over 'stem' by way of modality 'text'",)),
    ),
    "entry": ({"family": {**MAPS, "domain": {"math": "stem"}}}, dict(what="from domain to 'family' has no entry for domain 'code'", found="'math'", remedy="'code'")),
    "none": ({"family": {**MAPS, "domain": {"math": "stem", "code": None, "art": "a"}}}, dict(what="no entry for domain 'code'")),
    "unhashable": ({"family": {**MAPS, "domain": {"math": ["stem"]}}}, dict(what="the label ['stem'] of domain 'math' for 'family' is not hashable")),
    "one for two": ({"family": {"math": "stem"}}, dict(what="one mapping for 'family', over which domain and modality lie", required="family={'domain': {...}, 'modality': {...}}")),
    "lacking": ({"family": {"domain": MAPS["domain"]}}, dict(what="no mapping from 'modality' to 'family'", required="domain, modality")),
    "unknown": ({"family": {**MAPS, "turn": {1: 2}}}, dict(what="a mapping from 'turn' to 'family'")),
    "empty": ({"family": {}}, dict(what="one mapping for 'family'")),
}  # fmt: skip


@pytest.mark.parametrize("name", MAPPINGS)
def test_mappings_that_do_not_fit(name):
    changes, expected = MAPPINGS[name]
    refuses(HierarchyIndexError, lambda: families(**changes), **expected)


def test_tokens_have_no_labels_to_map_from():
    refuses(
        HierarchyIndexError, lambda: index(hierarchy(*BESIDE_EDGES), offsets=[0, 2], expert={0: "e"}),
        what=("'expert'", "token lies directly over it"), remedy="one label per token",
    )  # fmt: skip


def test_labels_that_contradict_along_two_paths():
    refuses(
        HierarchyIndexError, lambda: families(family=["stem", "stem", "arts", "arts"]),
        what="domain 'math' lies over two elements of family", found=("'stem'", "'arts'"),
    )  # fmt: skip


def test_parallel_paths_are_composed():
    good = families(domain=["math", "code", "math", "code"])
    check(good)
    wrong = dict(good.parents)
    wrong["modality", "family"] = torch.tensor([0, 1])
    broken = replace(good, parents=wrong, labels={**good.labels, "family": ("stem", "arts")}, _cache={})
    refuses(
        HierarchyIndexError, lambda: check(broken),
        what="trajectory 2 lies over family 'stem' by way of domain 'math', and over 'arts' by way of modality 'image'",
        required="all paths agree", found="trajectory → domain → family, and trajectory → modality → family",
    )  # fmt: skip


# ---------------------------------------------------------------- what is assumed


def test_an_empty_branch():
    edges = ("text -> trajectory", "image -> trajectory", "trajectory -> domain")
    per_row = hierarchy(*edges, assume=[populated(image, over=trajectory)])
    per_domain = hierarchy(*edges, assume=[populated(image, over=domain)])
    labels = dict(offsets=[0, 2, 4], image=[1, 0, 0, 0], domain=["a", "a"], trajectory=["r", "s"])
    refuses(
        HierarchyIndexError, lambda: index(per_row, **labels),
        what="trajectory 's' has no image", required="populated(image, over=trajectory)",
        found="1 of 2 trajectory elements without an image",
    )  # fmt: skip
    index(per_domain, **labels)
    index(per_row, **{**labels, "image": [1, 0, 0, 1]})
    refuses(
        HierarchyIndexError,
        lambda: index(per_domain, **{**labels, "domain": ["a", "b"]}),
        what="domain 'b' has no image",
    )


BALANCED = crossed(assume=[balanced(domain, modality)])


def crossing(h, cells, **more):
    """One row per cell and as many tokens as it says: `{("math", "text"): 2}`."""
    cells = {k: n for k, n in cells.items() if n}
    first, second = [a for a, _ in cells], [b for _, b in cells]
    offsets = np.concatenate([[0], np.cumsum(list(cells.values()))])
    return index(h, offsets=offsets, domain=first, modality=second, **more)


def test_balance_is_proportional_not_equal():
    crossing(BALANCED, {("m", "t"): 2, ("m", "i"): 4, ("c", "t"): 3, ("c", "i"): 6})
    refuses(
        HierarchyIndexError,
        lambda: crossing(BALANCED, {("m", "t"): 2, ("m", "i"): 4, ("c", "t"): 3, ("c", "i"): 7}),
        what="balanced(domain, modality) is assumed",
        required="m(domain∩modality)·m(batch) = m(domain)·m(modality)",
        found=(
            "domain 'c' and modality 't' share the mass 3, where balance asks for 3.125",
            "averaged over modality 't', reach 0.05 for log ratios",
        ),
        remedy=("cells (domain, modality) as a stratum", 'orthogonalise="projection"'),
    )
    refuses(
        HierarchyIndexError,
        lambda: crossing(BALANCED, {("m", "t"): 2, ("m", "i"): 2, ("c", "t"): 2}),
        found=(
            "domain 'c' and modality 'i' share the mass 0, where balance asks for 0.666667",
            "averaged over domain 'c', reach 0.667",
        ),
    )


def test_balance_within_every_element_of_the_meet():
    kernels = {"token -> trajectory": uniform()}
    h = hierarchy(*FAMILY_EDGES, kernels=kernels, kernel=proportional(N), assume=[balanced(domain, modality)])

    def rows(*cells):
        d, m, f = zip(*cells, strict=True)
        return lambda: index(h, offsets=range(len(cells) + 1), domain=d, modality=m, family=f)

    inside = [("a", "x", 1), ("a", "y", 1), ("b", "x", 1), ("b", "y", 1), ("c", "z", 2), ("c", "w", 2)]
    rows(*inside)()
    refuses(
        HierarchyIndexError, rows(*inside, ("d", "z", 2), ("d", "z", 2), ("d", "q", 2)),
        found=("domain 'd' and modality 'w' share the mass 0, where balance asks for 0.6", "over family 2"),
    )  # fmt: skip


def test_masses_come_from_the_kernels():
    h = crossed()
    weighted = hierarchy(*CROSSED_EDGES, kernel=proportional(total(W)))
    i = crossing(weighted, {("m", "t"): 2, ("c", "i"): 1}, attributes={"weight": [1.0, 2.0, 4.0]})
    measure = Measure(i, "a test")
    m = measure.of_leaf["token"]
    np.testing.assert_allclose(m / m.sum(), np.array([1, 2, 4]) / 7, rtol=1e-14)
    np.testing.assert_allclose(measure.of("domain") / m.sum(), [3 / 7, 4 / 7], rtol=1e-14)
    assert Measure(crossing(h, {("m", "t"): 2, ("c", "i"): 1}), "a test").of("modality").tolist() == [2, 1]
    rows = hierarchy("token -> trajectory", "trajectory -> batch")
    found = Measure(index(rows, offsets=[0, 2, 3]), "a test").of("trajectory")
    assert found[0] == pytest.approx(found[1], rel=1e-14)
    split = hierarchy("text -> trajectory", "image -> trajectory", kernels={
        "text -> trajectory": uniform(Fraction(1, 4)), "image -> trajectory": uniform(Fraction(3, 4)),
    })  # fmt: skip
    of_leaf = Measure(index(split, offsets=[0, 3], image=[1, 1, 0]), "a test").of_leaf
    assert of_leaf["text"].tolist() == pytest.approx([2 * of_leaf["image"].sum() / 6], rel=1e-14)


def test_masses_that_no_batch_has():
    share = Parameter("share", upper=1.0)
    kernels = {"text -> trajectory": uniform(share), "image -> trajectory": uniform(1 - share)}
    edges = ("text -> trajectory", "image -> trajectory", *CROSSED_EDGES[1:])
    one = dict(offsets=[0, 2], image=[1, 0], domain=["a"], modality=["b"])
    index(hierarchy(*edges, kernels=kernels), **one)
    for more in ({"assume": [balanced(domain, modality)]}, {"orthogonalise": "projection"}):
        refuses(
            SpecError, lambda more=more: index(hierarchy(*edges, kernels=kernels, **more), **one),
            what=("'h'", "parameter 'share'"), required="before parameters have values", remedy="Attribute",
        )  # fmt: skip
    sign = hierarchy(*CROSSED_EDGES, kernel=proportional(total(SIGNED)), orthogonalise="projection")
    refuses(
        HierarchyIndexError, lambda: crossing(sign, {("a", "b"): 2}, attributes={"signed": [-1.0, 3.0]}),
        what=("token [0] of trajectory 0", "the mass -0.5"), required="not negative",
    )  # fmt: skip


COUNTS = st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=2, max_size=3)


@given(counts=COUNTS, scale=st.lists(st.integers(1, 3), min_size=3, max_size=3), outer=st.booleans())
@settings(deadline=None, max_examples=60)
def test_balance_against_brute_force(counts, scale, outer):
    if outer:  # proportional by construction
        counts = [[(row[0] + 1) * s for s in scale] for row in counts]
    cells = {(i, j): n for i, row in enumerate(counts) for j, n in enumerate(row)}
    whole = sum(cells.values())
    if not whole:
        return
    row = {i: sum(n for (a, _), n in cells.items() if a == i) for i, _ in cells}
    column = {j: sum(n for (_, b), n in cells.items() if b == j) for _, j in cells}
    off = {
        (i, j): abs(Fraction(n, whole) - Fraction(row[i] * column[j], whole * whole))
        for (i, j), n in cells.items()
        if row[i] and column[j]
    }
    if not any(off.values()):
        crossing(BALANCED, cells)
        return
    assert not outer
    with pytest.raises(HierarchyIndexError) as caught:
        crossing(BALANCED, cells)
    worst = [k for k, v in off.items() if v == max(off.values())]
    assert any(f"domain {i} and modality {j} share the mass {cells[i, j]}, " in caught.value.found for i, j in worst)
    leaks = [
        sum(abs(Fraction(cells[i, j], row[i]) - Fraction(column[j], whole)) for j in column if column[j])
        for i in row
        if row[i]
    ] + [
        sum(abs(Fraction(cells[i, j], column[j]) - Fraction(row[i], whole)) for i in row if row[i])
        for j in column
        if column[j]
    ]
    assert f"reach {float(max(leaks)):.3g} for" in caught.value.found


# ---------------------------------------------------------------- projection


def effects(i, x, m):
    """ρ of every stratum of S on tokens, from the definition: an orthonormal basis of functions of each stratum that
    are orthogonal to all coarser ones, and one least-squares fit in all of them. Tokens of all leaves side by side."""
    h, shape = i.hierarchy, i.hierarchy.shape
    starts = np.cumsum([0, *(i.size[leaf] for leaf in i.leaves)])
    bases, root = {}, np.sqrt(m)

    def indicators(s):
        columns = np.zeros((len(m), i.size[s.name]))
        for leaf, start in zip(i.leaves, starts, strict=False):
            if Stratum(leaf) in shape.leaves_over(s):
                columns[start + np.arange(i.size[leaf]), i.parent(leaf, s.name).numpy()] = 1
        return columns * root[:, None]

    involved = {u for v in shape.strata if len(shape.below(v)) > 1 for u in shape.coarser(v)}
    for u in (s for s in h.order if s in involved):
        mine = indicators(u)
        coarser = [indicators(w) for w in shape.coarser(u)]
        if coarser:
            q, values, _ = np.linalg.svd(np.concatenate(coarser, axis=1), full_matrices=False)
            q = q[:, values > 1e-9 * values[0]]
            mine = mine - q @ (q.T @ mine)
        q, values, _ = np.linalg.svd(mine, full_matrices=False)
        bases[u.name] = q[:, values > 1e-9]
    whole = np.concatenate(list(bases.values()), axis=1)
    assert np.linalg.matrix_rank(whole) == whole.shape[1]
    solution = np.linalg.lstsq(whole, root * x, rcond=None)[0]
    found, at = {}, 0
    for name, basis in bases.items():
        found[name] = basis @ solution[at : at + basis.shape[1]] / root
        at += basis.shape[1]
    return found


def means(i, x, m):
    """`s` of every stratum."""
    starts = np.cumsum([0, *(i.size[leaf] for leaf in i.leaves)])
    found = {}
    for s in i.hierarchy.strata:
        top = bottom = np.zeros(i.size[s.name])
        for leaf, start in zip(i.leaves, starts, strict=False):
            if s in (Stratum(leaf), *i.hierarchy.coarser(Stratum(leaf))):
                here = slice(start, start + i.size[leaf])
                parent = i.parent(leaf, s.name).numpy()
                top = top + np.bincount(parent, weights=(m * x)[here], minlength=i.size[s.name])
                bottom = bottom + np.bincount(parent, weights=m[here], minlength=i.size[s.name])
        found[s.name] = top / bottom
    return found


def agrees(i, seed=0, tolerance=1e-9):
    measure = Measure(i, "a test")
    m = np.concatenate([measure.of_leaf[leaf] for leaf in i.leaves])
    x = np.random.default_rng(seed).normal(size=len(m))
    s, expected = means(i, x, m), effects(i, x, m)
    assert set(i.projection.strata) == set(expected)
    starts = np.cumsum([0, *(i.size[leaf] for leaf in i.leaves)])
    for u, on_tokens in expected.items():
        found = sum(i.matrix(u, w).numpy() @ s[w] for w in expected)
        for leaf, start in zip(i.leaves, starts, strict=False):
            here = on_tokens[start : start + i.size[leaf]]
            if leaf in i.leaves_over(u):
                np.testing.assert_allclose(found[i.parent(leaf, u).numpy()], here, atol=tolerance)
            else:
                np.testing.assert_allclose(here, 0, atol=tolerance)


PROJECTED = crossed(orthogonalise="projection")


def test_projection_of_two_crossed_strata():
    i = crossing(PROJECTED, {("m", "t"): 2, ("m", "i"): 5, ("c", "t"): 3, ("c", "i"): 1, ("c", "a"): 2, ("d", "a"): 4})
    assert i.projection.strata == ("batch", "domain", "modality")
    agrees(i)
    assert i.matrix("domain", "modality").shape == (3, 3)
    assert i.matrix("domain", "modality").dtype == torch.float64
    assert i.matrix("domain", "batch") is i.matrix("domain", "batch")
    refuses(
        HierarchyIndexError,
        lambda: i.matrix("domain", "token"),
        what="does not involve 'token'",
        required="batch, domain, modality",
    )
    plain = crossing(crossed(), {("m", "t"): 2})
    assert plain.projection is None
    refuses(
        HierarchyIndexError, lambda: plain.matrix("domain", "batch"), what="does not involve 'domain'", required="none"
    )


def test_a_balanced_batch_is_projected_by_the_moebius_recursion():
    h = crossed(orthogonalise="projection", assume=[balanced(domain, modality)])
    i = crossing(h, {("m", "t"): 2, ("m", "i"): 4, ("c", "t"): 3, ("c", "i"): 6})
    m = np.ones(15)
    s = means(i, np.random.default_rng(1).normal(size=15), m)
    rho = {u: sum(i.matrix(u, w).numpy() @ s[w] for w in i.projection.strata) for u in i.projection.strata}
    np.testing.assert_allclose(rho["batch"], s["batch"], atol=1e-13)
    for u in ("domain", "modality"):
        np.testing.assert_allclose(rho[u], s[u] - s["batch"][0], atol=1e-13)


def test_projection_of_experts_beside_trajectories():
    kernels = dict.fromkeys(BESIDE_EDGES, proportional(total(W)))
    h = hierarchy(*BESIDE_EDGES, kernels=kernels, orthogonalise="projection")
    experts = [["e", "f", "g", "e"], ["f", "f", "e", None], ["g", "e", None, None]]
    mask = [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]]
    agrees(index(h, mask=mask, expert=experts, attributes={"weight": np.linspace(0.5, 3, 12).reshape(3, 4)}))


def test_projection_of_nested_crossings():
    """Tokens lie over experts and trajectories, and these over domains and modalities."""
    edges = ("token -> expert", "expert -> batch", *CROSSED_EDGES)
    h = hierarchy(
        *edges,
        kernel=proportional(N),
        kernels={"token -> expert": uniform(), "token -> trajectory": uniform()},
        orthogonalise="projection",
    )
    rng = np.random.default_rng(3)
    lengths = rng.integers(2, 6, 12)
    i = index(
        h, offsets=np.concatenate([[0], np.cumsum(lengths)]), expert=rng.integers(0, 3, lengths.sum()).tolist(),
        domain=["a", "a", "b", "b", "c", "c"] * 2, modality=["x", "y", "y", "z", "z", "z", "x", "x", "y", "y", "x", "z"],
    )  # fmt: skip
    assert i.projection.strata == ("batch", "expert", "domain", "modality", "trajectory")
    agrees(i, tolerance=1e-8)


def two_leaves(*edges):
    """Text and images over trajectories and experts, or over what `edges` says, in the measure that counts tokens."""

    def n(over=None):
        return count(text, over=over) + count(image, over=over)

    rows = {"trajectory -> batch": proportional(n()), "expert -> batch": proportional(n())}
    for edge in edges:
        rows.setdefault(edge, MarkovKernel(1 / n(over=Stratum(edge.partition(" -> ")[2]))))
    return hierarchy(*edges, kernels=rows, orthogonalise="projection")


def test_projection_with_two_leaves():
    edges = (
        "text -> expert",
        "image -> expert",
        "text -> trajectory",
        "image -> trajectory",
        "expert -> batch",
        "trajectory -> batch",
    )
    experts = [["e", "f", "g", "e"], ["f", "g", "e", "f"], ["e", "f", "f", "f"]]
    where = dict(mask=torch.ones(3, 4), image=[[0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]], expert=experts)
    i = index(two_leaves(*edges), **where)
    of_leaf = Measure(i, "a test").of_leaf
    assert set(of_leaf["text"]) == set(of_leaf["image"]) and len(set(of_leaf["text"])) == 1
    agrees(i)
    refuses(
        SpecError, lambda: index(two_leaves(*edges[:1], *edges[2:]), **where),
        what=("'h'", "expert, over which no image lies"), required="the same leaves over expert as over batch", remedy="let image lie over expert",
    )  # fmt: skip


@given(rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=14))
@settings(deadline=None, max_examples=40)
def test_projection_is_defined_where_the_crossing_hangs_together(rows):
    """For two strata over the batch, effects can be told apart just when the cells join all of them."""
    joined = [{("d", d), ("m", m)} for d, m, _ in rows]
    parts = []
    for pair in joined:
        inside = [p for p in parts if p & pair]
        parts = [p for p in parts if not p & pair] + [pair.union(*inside)]
    labels = dict(
        offsets=np.concatenate([[0], np.cumsum([n for _, _, n in rows])]),
        domain=[d for d, _, _ in rows], modality=[m for _, m, _ in rows],
    )  # fmt: skip
    if len(parts) == 1:
        agrees(index(PROJECTED, **labels), tolerance=1e-7)
        return
    with pytest.raises(HierarchyIndexError) as caught:
        index(PROJECTED, **labels)
    smallest = min(map(len, parts))
    worded = set()
    for part in (p for p in parts if len(p) == smallest):
        words = [
            f"{word} {', '.join(str(n) for s, n in sorted(part) if s == word[0])}" for word in ("domain", "modality")
        ]
        worded.add(
            " and ".join(words) + (" always occur together" if smallest == 2 else " occur with each other alone")
        )
    assert caught.value.found in worded


def test_crossings_of_too_low_a_rank():
    rule = dict(
        what="effects of crossed strata cannot be told apart",
        required="one least-squares fit in batch, domain, modality",
    )
    refuses(
        HierarchyIndexError, lambda: crossing(PROJECTED, {("a", "x"): 1, ("a", "y"): 2, ("math", "text"): 3}), **rule,
        found="domain 'math' and modality 'text' always occur together", remedy=("common coarsening as a stratum", "leave domain or modality out"),
    )  # fmt: skip
    cells = {("a", "x"): 1, ("a", "y"): 2, ("b", "z"): 1, ("b", "w"): 1}
    refuses(
        HierarchyIndexError,
        lambda: crossing(PROJECTED, cells),
        **rule,
        found="domain 'a' and modality 'x', 'y' occur with each other alone",
    )
    rootless = hierarchy(
        *CROSSED_EDGES[:3],
        kernel=proportional(N),
        kernels={"token -> trajectory": uniform()},
        orthogonalise="projection",
    )
    refuses(
        HierarchyIndexError, lambda: crossing(rootless, {("a", "x"): 1, ("a", "y"): 1, ("b", "x"): 1, ("b", "y"): 1}),
        found="lie over no common stratum", remedy="for example batch",
    )  # fmt: skip
    edges = (*CROSSED_EDGES, "trajectory -> tool", "tool -> batch")
    three = hierarchy(
        *edges, kernel=proportional(N), kernels={"token -> trajectory": uniform()}, orthogonalise="projection"
    )
    # a Latin square too small for three factors: the third is the sum of the others, though all pairs hang together
    d, m = np.divmod(np.arange(4), 2)
    i = index(three, offsets=range(9), domain=[*d, *d], modality=[*m, *m], tool=[*(d ^ m), *(1 - (d ^ m))])
    agrees(i)
    refuses(
        HierarchyIndexError,
        lambda: index(three, offsets=range(5), domain=["a", "a", "b", "c"], modality=["x", "y", "x", "y"], tool=["u", "v", "v", "v"]),
        found=("cannot be told apart", "tool"), remedy="a common coarsening of them",
    )  # fmt: skip


def test_too_many_elements(monkeypatch):
    monkeypatch.setattr(projection_module, "MAX_ELEMENTS", 4)
    refuses(
        HierarchyIndexError, lambda: crossing(PROJECTED, {("m", "t"): 1, ("m", "i"): 1, ("c", "t"): 1, ("c", "i"): 1}),
        what="solves for 5 elements", required="at most 4", found="1 batch, 2 domain, 2 modality",
    )  # fmt: skip


def test_elements_without_mass():
    edges = ("token -> domain", "token -> modality", *CROSSED_EDGES[3:])
    h = hierarchy(*edges, kernel=proportional(total(SIGNED)), orthogonalise="projection")
    one = dict(offsets=[0, 3], domain=[["m", "m", "c"]], modality=[["t", "i", "i"]])
    one = {k: v if k == "offsets" else v[0] for k, v in one.items()}
    refuses(
        HierarchyIndexError, lambda: index(h, **one, attributes={"signed": [0.0, 1.0, 1.0]}),
        what="modality 't' has the mass 0", required="a positive mass",
    )  # fmt: skip
    agrees(index(h, **{**one, "modality": ["t", "i", "t"]}, attributes={"signed": [2.0, 1.0, 1.0]}))


# ---------------------------------------------------------------- calls


def batch_of(i, advantages, per_row=None, **tokens):
    per_row = tuple(advantages.shape) == (i.n_rows,) if per_row is None else per_row
    return Batch(i, tokens, advantages, per_row, {"extra": torch.ones(1)}, torch.float64, 0.0)


def test_inputs_of_several_leaves():
    i = tree()
    now, old = (torch.arange(12.0).reshape(3, 4) * k for k in (3, 1))
    values = inputs_of(batch_of(i, torch.tensor([1.0, 2.0, 3.0]), log_probs=now, old_log_probs=old, cotangent=now))
    assert set(values) == {
        "extra",
        *(f"{w}_{s}" for w in ("log_ratio", "log_prob", "advantage", "cotangent") for s in ("text", "image")),
    }
    assert values["log_ratio_text"].tolist() == [0, 4, 18]
    assert values["log_prob_image"].tolist() == values["cotangent_image"].tolist() == [3, 24, 33]
    assert values["advantage_image"].tolist() == [1, 3, 3]
    assert values["log_ratio_text"].dtype == torch.float64
    per_token = inputs_of(batch_of(i, now, log_ratio=old))
    assert per_token["advantage_text"].tolist() == [0, 6, 27]
    assert per_token["log_ratio_image"].tolist() == [1, 8, 11]
    assert "log_prob_text" not in per_token
    one = index(hierarchy("token -> trajectory"), mask=MASK)
    values = inputs_of(batch_of(one, now, log_probs=now, old_log_probs=old))
    assert set(values) == {"extra", "log_ratio", "log_prob", "advantage"}
    assert values["log_prob"].tolist() == [0, 3, 6, 24, 27, 33]


def made(h, i, inputs, advantages, matrices=()):
    program = SimpleNamespace(inputs=inputs, leaves=i.leaves, matrices=matrices)
    return make_batch(h, program, program, i, {"log_ratio": torch.zeros(i.shape)}, advantages, None, torch.float64, 0.0)


def test_advantages_and_matrices_of_a_program():
    i = tree()
    text_, images, turns, rows, whole = (
        Input(f"advantage_{s}", s, "advantage") for s in ("text", "image", "turn", "trajectory", "domain")
    )
    per_row = torch.tensor([1.0, 2.0, 3.0])
    found = made(TREE, i, (text_, images, turns, rows, whole), per_row)
    assert found.advantage is not None and found.per_row
    assert {k: v.tolist() for k, v in found.vectors.items()} == {
        "advantage_turn": [1, 1, 3], "advantage_trajectory": [1, 3], "advantage_domain": [1, 3],
    }  # fmt: skip
    per_token = torch.where(IMAGE.bool(), 10.0, per_row[:, None])
    assert made(TREE, i, (turns,), per_token).vectors["advantage_turn"].tolist() == [1, 1, 3]
    refuses(
        BatchError, lambda: made(TREE, i, (rows,), per_token),
        what="the advantages vary within a trajectory", found=("1 and 10", "token [0, "),
    )  # fmt: skip
    per_token = per_row[:, None].repeat(1, 4)
    per_token[2, 0] = 10.0
    refuses(BatchError, lambda: made(TREE, i, (rows,), per_token), found=("10 and 3", "token [2, 0] of trajectory 2"))
    per_token[2, 1] = math.nan
    refuses(BatchError, lambda: made(TREE, i, (turns,), per_token), what="token [2, 1] of trajectory 2 is not finite")
    crossed_index = crossing(PROJECTED, {("m", "t"): 2, ("m", "i"): 5, ("c", "t"): 3, ("c", "i"): 1})
    node = Mix("domain", "modality", Input("x", "modality", "test"))
    found = made(PROJECTED, crossed_index, (), None, (node,))
    assert found.vectors == {"matrix_domain_of_modality": crossed_index.matrix("domain", "modality")}


def test_attributes_of_one_leaf():
    height = Attribute("height", on=image)
    kernels = {"image -> trajectory": proportional(total(height)), "text -> trajectory": uniform()}
    h = hierarchy("text -> trajectory", "image -> trajectory", kernels=kernels)
    values = torch.arange(1.0, 13.0).reshape(3, 4)
    for given_values in (values, [2.0, 9.0, 12.0]):
        i = index(h, mask=MASK, image=IMAGE, attributes={"height": given_values})
        assert i.values["height"].tolist() == [2, 9, 12]
        assert i.total(height, "trajectory").tolist() == [2, 21]
    refuses(
        HierarchyIndexError,
        lambda: index(h, mask=MASK, image=IMAGE, attributes={"height": [1.0] * 6}),
        what="[6]",
        required="[3]",
    )


def test_the_documented_example_is_an_index():
    page = (Path(__file__).resolve().parents[1] / "docs" / "operator.md").read_text()
    block = next(b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "orthogonalise" in b)
    standin = SimpleNamespace(compile=lambda h: SimpleNamespace(index=lambda **k: index(h, **k)))
    scope = {"fibration": standin, "torch": torch}
    exec(block, scope)
    i = scope["index"]
    assert dict(i.size) == {"text": 5, "image": 3, "trajectory": 3, "domain": 2, "modality": 2, "batch": 1}
    agrees(i)
    assert f"at most {projection_module.MAX_ELEMENTS} elements" in page


def test_balance_some_rows_at_a_time(monkeypatch):
    """Cells are looked at in chunks: whatever their size, the same cell is the worst."""
    rng = np.random.default_rng(5)
    labels = dict(offsets=range(41), domain=rng.integers(0, 9, 40).tolist(), modality=rng.integers(0, 7, 40).tolist())
    messages = set()
    for chunk in (1, 10, 1 << 22):
        monkeypatch.setattr(checks_module, "CHUNK", chunk)
        with pytest.raises(HierarchyIndexError) as caught:
            index(BALANCED, **labels)
        messages.add(str(caught.value))
    assert len(messages) == 1


# ---------------------------------------------------------------- random trees


@st.composite
def random_trees(draw):
    """A tree of strata, rows beside it, and tokens with their labels by stratum."""
    size = draw(st.integers(1, 6))
    below = {k: draw(st.integers(0, k - 1)) for k in range(1, size + 1)}
    leaves = [k for k in range(size + 1) if k not in below.values()]
    rows = draw(
        st.lists(
            st.lists(
                st.tuples(st.booleans(), st.sampled_from(leaves), st.lists(st.integers(0, 1), min_size=7, max_size=7)),
                max_size=4,
            ),
            min_size=1,
            max_size=4,
        )
    )
    if not any(keep for row in rows for keep, _, _ in row):
        rows.append([(True, leaves[0], [0] * 7)])
    return below, leaves, rows, draw(st.booleans())


@given(random_trees())
@settings(deadline=None, max_examples=150)
def test_random_trees_against_their_definition(world):
    below, leaves, rows, padded = world
    name = "abcdefgh"

    def path(k):
        return [k, *path(below[k])] if k in below else [k]

    h = hierarchy(*(f"{name[k]} -> {name[b]}" for k, b in below.items()), rows=Stratum("row"))
    width = max(map(len, rows))
    slots = [[*row, *[(False, leaves[0], [0] * 7)] * (width - len(row))] for row in rows] if padded else rows
    flat = [t for row in slots for t in row]
    labels = []  # by stratum: an element is what lies below it, and a number
    for keep, leaf, numbers in flat:
        labels.append({name[k]: tuple(numbers[j] for j in path(k)) for k in path(leaf)} if keep else {})
    if not padded and len(flat) == len(rows):
        return  # as many tokens as rows: see below
    kept = [p for p, (keep, _, _) in enumerate(flat) if keep]

    def shaped(values):
        return [values[r * width : (r + 1) * width] for r in range(len(rows))] if padded else values

    given_ = {name[b]: shaped([x.get(name[b]) for x in labels]) for b in set(below.values())}
    if len(leaves) > 1:
        given_ |= {name[k]: shaped([leaf == k for _, leaf, _ in flat]) for k in leaves[:-1]}
    mask = shaped([keep for keep, _, _ in flat])
    i = index(h, mask=mask, **({} if padded else {"offsets": np.cumsum([0, *map(len, rows)])}), **given_)

    assert i.leaves == tuple(s.name for s in h.leaves)
    assert i.positions.tolist() == kept
    row_of = [r for r, row in enumerate(slots) for _ in row]
    for leaf in leaves:
        mine = [p for p in kept if flat[p][1] == leaf]
        assert i.positions_of(name[leaf]).tolist() == mine
        assert i.row_tensor()[i.rows_of_tokens(name[leaf])].tolist() == [row_of[p] for p in mine]
        assert i.row_tensor()[i.parent(name[leaf], "row")].tolist() == [row_of[p] for p in mine]
        for k in path(leaf)[1:]:
            s = name[k]
            there = [i.labels[s][e] for e in i.parent(name[leaf], s).tolist()]
            assert there == [labels[p][s] for p in mine]
            layout = i.layout(s, name[leaf])
            for element, label in enumerate(i.labels[s]):
                a, b = layout.offsets[element : element + 2].tolist()
                over = [p for p in mine if labels[p][s] == label]
                positions = layout.positions
                found = (
                    range(int(layout.starts[element]), int(layout.starts[element]) + b - a)
                    if positions is None
                    else positions[a:b].tolist()
                )
                assert list(found) == over
                numbers = range(a, b) if layout.tokens is None else layout.tokens[a:b].tolist()
                assert [mine[n] for n in numbers] == over
    for k in set(below.values()):
        s = name[k]
        seen = list(dict.fromkeys(labels[p][s] for p in kept if s in labels[p]))
        assert list(i.labels[s]) == seen
        straddles = any(len({row_of[p] for p in kept if labels[p].get(s) == label}) > 1 for label in seen)
        assert (i.rows_of(s) is None) == straddles
        for finer in (f for f in range(8) if f in below and s in [name[x] for x in path(f)[1:]]):
            of = name[finer]
            counts = [
                len(
                    {
                        labels[p][of] if finer not in leaves else p
                        for p in kept
                        if of in labels[p] and labels[p].get(s) == label
                    }
                )
                for label in seen
            ]
            assert i.count(of, s).tolist() == counts


def test_as_many_tokens_as_rows_beside_the_hierarchy():
    h = hierarchy("text -> turn", "image -> turn", rows=Stratum("row"))
    labels = dict(offsets=[0, 2, 2], image=[1, 0])
    refuses(
        HierarchyIndexError, lambda: index(h, **labels, turn=["a", "b"]),
        what="2 labels for 'turn' may be per token or per row", found="'b' and 'a' for token [1]", remedy="leave the rows",
    )  # fmt: skip
    assert index(h, **labels, turn=["a", "a"]).parents["image", "turn"].tolist() == [0]
    assert index(h, **{**labels, "offsets": [0, 1, 2]}, turn=["a", "b"]).parents["text", "turn"].tolist() == [1]


def test_shuffled_rows_give_the_same_hierarchy():
    order = [2, 0, 1]
    one, other = (
        tree(),
        tree(mask=MASK[order], image=IMAGE[order], turn=[TURN[k] for k in order], domain=["c", "m", None]),
    )
    for (source, target), parent in one.parents.items():
        if source in one.labels and source != "trajectory":
            names, others = one.labels[target], other.labels[target]
            first = {one.labels[source][a]: names[b] for a, b in enumerate(parent.tolist())}
            second = {other.labels[source][a]: others[b] for a, b in enumerate(other.parents[source, target].tolist())}
            moved = {k: order[v] if target == "trajectory" else v for k, v in second.items()}
            assert moved == first
    assert other.labels["turn"] == (7, 5, 6)
    assert other.size == one.size
