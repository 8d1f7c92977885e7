"""Indices of trees and quivers: leaves, labels of tokens and rows, labels of labels."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hierarchies.edges import (
    BESIDE_EDGES,
    FAMILY_EDGES,
    IMAGE,
    MASK,
    PROJECTED,
    TREE,
    crossing,
    hierarchy,
    image,
    index,
    lists,
    text,
    tree,
)
from support import refuses

from fibration import Attribute, BatchError, HierarchyIndexError, proportional, total, uniform
from fibration.compiler.arguments import TOKENS
from fibration.compiler.ir import Input, Key, Matrix, token_input
from fibration.compiler.program import Program
from fibration.runtime.batch import Batch, inputs_of
from fibration.runtime.inputs import make_batch

# ---------------------------------------------------------------- leaves


def test_an_index_of_a_tree_equals_one_written_by_hand():
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
    refuses(HierarchyIndexError, lambda: i.tokens_of("turn"), what="'turn' is not a leaf", required="text, image")


def test_the_layouts_of_a_tree_equal_those_written_by_hand():
    i = tree()
    image_rows = i.layout("trajectory", "image")
    assert image_rows.offsets.tolist() == [0, 1, 3]
    assert image_rows.positions.tolist() == [1, 8, 11]
    assert image_rows.tokens is None
    turns = i.layout("turn", "text")
    assert turns.offsets.tolist() == [0, 1, 2, 3]
    assert turns.starts.tolist() == [0, 2, 9]
    assert turns.positions is None  # whole: other leaves' tokens lie between
    assert (turns.offsets.diff().max(), turns.offsets[-1], len(turns.starts)) == (1, 3, 3)
    refuses(HierarchyIndexError, lambda: i.layout("trajectory"), what="without a leaf", required="text, image")
    refuses(HierarchyIndexError, lambda: i.layout("turn", "image"), what="'image' does not lie over 'turn'")


def test_segments_may_be_empty_and_out_of_order():
    h = hierarchy("text -> trajectory", "image -> trajectory", "trajectory -> domain")
    i = index(h, offsets=[0, 2, 3, 5], text=[1, 1, 0, 1, 0], domain=["b", "a", "b"])
    rows = i.layout("trajectory", "text")
    assert rows.offsets.tolist() == [0, 2, 2, 3]
    assert rows.starts.tolist() == [0, 2, 3]  # one without tokens starts where the one before it ended
    assert rows.positions is None
    assert (rows.offsets.diff().max(), rows.offsets[-1], len(rows.starts)) == (2, 3, 3)
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
    assert no_images.parent("image", "domain").tolist() == []
    assert no_images.members("image", "trajectory").offsets.tolist() == [0, 0]


def test_an_index_with_one_leaf_has_the_layout_of_its_tokens():
    i = index(hierarchy("token -> trajectory"), mask=torch.tensor([[1, 1, 0], [1, 0, 0]]))
    assert i.leaves == ("token",)
    assert i.tokens_of("token") is None
    assert i.positions_of("token") is i.positions
    assert i.layout("trajectory") is i.layout("trajectory", "token")
    assert i.layout("trajectory").positions is None


def test_a_layout_of_rows_has_no_number_per_token():
    """Layouts of rows, and what they are made of, are as long as the rows."""
    h = hierarchy("token -> trajectory", "trajectory -> domain")
    mask = torch.arange(50) < torch.tensor([[50], [7], [0], [20]])
    for i in (index(h, mask=mask, domain=[*"abca"]), index(h, offsets=[0, 50, 57, 57, 77], domain=[*"abca"])):
        layout = i.layout("trajectory")
        assert layout.positions is None and layout.tokens is None
        assert layout.offsets.tolist() == [0, 50, 57, 77]
        assert i.of_rows("token", "domain").tolist() == [0, 1, 0]
        assert i.count("token", "domain").tolist() == [70, 7]
        assert i.rows_of("trajectory").tolist() == [0, 1, 3]
        assert i.describe_token(57) == f"token {'[3, 0]' if len(i.shape) == 2 else '[57]'} of trajectory 3"
        held = [t for kept in i._cache.values() for t in getattr(kept, "__dict__", {"": kept}).values()]
        assert max(t.numel() for t in [*held, *i.edges.values()] if isinstance(t, torch.Tensor)) < 5
        assert i.parents["token", "trajectory"] is i.parent("token", "trajectory")  # made once
        assert i.parent("token", "trajectory").tolist() == [0] * 50 + [1] * 7 + [2] * 20
        assert i.row_of_token.tolist() == i.parent("token", "trajectory").tolist()


LEAVES = {
    "no masks": ({"image": None}, dict(what="no masks for 'text' and 'image'", required="all of text, image except one", remedy="pass text=")),
    "shape": ({"image": IMAGE[:2]}, dict(what="the mask of 'image' has shape [2, 4]", required="[3, 4]")),
    "values": ({"image": IMAGE * 2}, dict(what="the mask of 'image' has values other than 0 and 1")),
    "two": ({"text": 1 - IMAGE | (torch.arange(12).reshape(3, 4) == 11)}, dict(what="token [2, 3] is in two leaves: 'text' and 'image'", remedy="leave one")),
    "none": ({"text": (1 - IMAGE) * (torch.arange(12).reshape(3, 4) != 2)}, dict(what="token [0, 2] belongs to no leaf", required="one of text, image")),
    "unknown": ({"audio": IMAGE}, dict(what="unknown label 'audio'", required=("labels for domain, turn", "masks for text, image"), found="{text → turn, turn → trajectory, image → trajectory, trajectory → domain}")),
}  # fmt: skip


@pytest.mark.parametrize("name", LEAVES)
def test_wrong_masks_of_leaves_are_refused(name):
    changes, expected = LEAVES[name]
    refuses(HierarchyIndexError, lambda: tree(**changes), **expected)


def test_a_row_without_a_leaf_that_lies_over_it_is_refused():
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
def test_a_negative_label_of_a_token_is_refused(make):
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


def test_a_stratum_that_crosses_the_rows_takes_labels_per_token():
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


def test_a_stratum_of_one_leaf_takes_no_labels_of_other_leaves():
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


def test_a_label_per_row_does_not_apply_to_tokens_of_other_leaves():
    h = hierarchy("text -> domain", "domain -> family", "image -> trajectory")
    i = index(h, mask=torch.ones(2, 2), image=[[0, 1], [1, 0]], domain=["d", "e"], family=[["f", None], ["h", "g"]])
    assert i.parents["domain", "family"].tolist() == [0, 1]
    assert i.labels["family"] == ("f", "g")


ROWS = {"domain": ["math", "code", "math", "art"], "modality": ["text", "text", "image", "image"]}
MAPS = {"domain": {"math": "stem", "code": "stem", "art": "arts"}, "modality": {"text": "stem", "image": "stem"}}


def families(h=None, **changes):
    labels = {**ROWS, "family": MAPS, **changes}
    return index(h or hierarchy(*FAMILY_EDGES), offsets=[0, 2, 3, 5, 6], **labels)


def test_a_mapping_gives_labels_to_labels():
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
            required="all paths agree", remedy="correct one of the mappings for 'family'",
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
def test_wrong_mappings_are_refused(name):
    changes, expected = MAPPINGS[name]
    refuses(HierarchyIndexError, lambda: families(**changes), **expected)


def test_a_mapping_from_tokens_is_refused():
    refuses(
        HierarchyIndexError, lambda: index(hierarchy(*BESIDE_EDGES), offsets=[0, 2], expert={0: "e"}),
        what=("'expert'", "token lies directly over it"), remedy="one label per token",
    )  # fmt: skip


def test_names_of_rows_are_read_per_row():
    """Also of rows that are no stratum of the hierarchy, and where there are as many tokens."""
    h = hierarchy("text -> domain", "image -> domain")
    i = index(h, offsets=[0, 2, 2, 3], image=[0, 1, 0], domain=["m", "m", "c"], trajectory=["a", "b", "c"])
    assert i.labels["trajectory"] == ("a", "c")
    refuses(
        HierarchyIndexError, lambda: index(h, offsets=[0, 1, 2], image=[0, 1], domain=["m", "m"], trajectory=["a", "a"]),
        what="two rows are called 'a'",
    )  # fmt: skip


def test_labels_that_differ_along_two_paths_are_refused():
    refuses(
        HierarchyIndexError, lambda: families(family=["stem", "stem", "arts", "arts"]),
        what="domain 'math' lies over two elements of family", found=("'stem'", "'arts'"),
    )  # fmt: skip


def test_maps_along_parallel_paths_are_composed():
    good = families(domain=["math", "code", "math", "code"])
    for between in ("domain", "modality"):
        along = good.parent(between, "family")[good.parent("trajectory", between)]
        assert along.tolist() == good.parent("trajectory", "family").tolist()


# ---------------------------------------------------------------- calls


EXTRA = Input("extra", "domain", "extra")


def batch_of(i, advantages, per_row=None, **tokens):
    per_row = tuple(advantages.shape) == (i.n_rows,) if per_row is None else per_row
    return Batch(i, tokens, advantages, per_row, {EXTRA: torch.ones(1)}, torch.float64, 0.0)


def read_by(batch):
    """What a program reads that has every input which the batch has."""
    kinds = [kind for kind, row in TOKENS.items() if row.called in batch.tokens]
    leaves = batch.index.leaves
    inputs = [token_input(kind, leaf, leaves) for kind in (*kinds, "advantage") for leaf in leaves]
    outputs = {Key(f"out_{n}"): i for n, i in enumerate((*inputs, EXTRA))}
    found = inputs_of(batch, Program("all", leaves, outputs, {}))
    return {(i.kind, i.stratum): value for i, value in found.items()}


def test_each_leaf_reads_its_own_tokens():
    i = tree()
    now, old = (torch.arange(12.0).reshape(3, 4) * k for k in (3, 1))
    per_row = torch.tensor([1.0, 2.0, 3.0])
    values = read_by(batch_of(i, per_row, log_probs=now, old_log_probs=old, cotangent=now))
    assert values["old_log_prob", "text"].tolist() == [0, 2, 9]
    assert values["log_prob", "image"].tolist() == values["cotangent", "image"].tolist() == [3, 24, 33]
    assert values["advantage", "image"].tolist() == [1, 3, 3]
    assert values["log_prob", "text"].dtype == torch.float64
    assert values["extra", "domain"].tolist() == [1]
    per_token = read_by(batch_of(i, now, log_ratio=old))
    assert per_token["advantage", "text"].tolist() == [0, 6, 27]
    assert per_token["log_ratio", "image"].tolist() == [1, 8, 11]
    one = index(hierarchy("token -> trajectory"), mask=MASK)
    values = read_by(batch_of(one, now, log_probs=now, old_log_probs=old))
    assert values["log_prob", "token"].tolist() == [0, 3, 6, 24, 27, 33]


def made(h, i, inputs, advantages, matrices=()):
    program = SimpleNamespace(inputs=inputs, leaves=i.leaves, matrices=matrices)
    return make_batch(program, program, i, {"log_ratio": torch.zeros(i.shape)}, advantages, None, torch.float64, 0.0)


def test_a_program_reads_advantages_and_maps_of_each_leaf():
    i = tree()
    text_, images, turns, rows, whole = (
        Input(f"advantage_{s}", s, "advantage") for s in ("text", "image", "turn", "trajectory", "domain")
    )
    per_row = torch.tensor([1.0, 2.0, 3.0])
    found = made(TREE, i, (text_, images, turns, rows, whole), per_row)
    assert found.advantage is not None and found.per_row
    assert {k: v.tolist() for k, v in found.vectors.items()} == {
        turns: [1, 1, 3], rows: [1, 3], whole: [1, 3],
    }  # fmt: skip
    per_token = torch.where(IMAGE.bool(), 10.0, per_row[:, None])
    assert made(TREE, i, (turns,), per_token).vectors[turns].tolist() == [1, 1, 3]
    refuses(
        BatchError, lambda: made(TREE, i, (rows,), per_token),
        what="the advantages vary within a trajectory", found=("1 at token [0, 0]", "10 at token [0, 1]"),
    )  # fmt: skip
    per_token = per_row[:, None].repeat(1, 4)
    per_token[2, 0] = 10.0
    refuses(BatchError, lambda: made(TREE, i, (rows,), per_token), found="10 at token [2, 0] of trajectory 2, and 3 at")
    per_token[2, 1] = math.nan
    refuses(BatchError, lambda: made(TREE, i, (turns,), per_token), what="token [2, 1] of trajectory 2 is nan")
    crossed_index = crossing(PROJECTED, {("m", "t"): 2, ("m", "i"): 5, ("c", "t"): 3, ("c", "i"): 1})
    matrix = Matrix("domain", "modality")
    found = made(PROJECTED, crossed_index, (), None, (matrix,))
    assert found.vectors == {matrix: crossed_index.matrix("domain", "modality")}


def test_attributes_of_a_leaf_are_read_at_its_tokens():
    height = Attribute("height", on=image)
    kernels = {"image -> trajectory": proportional(total(height)), "text -> trajectory": uniform()}
    h = hierarchy("text -> trajectory", "image -> trajectory", kernels=kernels)
    values = torch.arange(1.0, 13.0).reshape(3, 4)
    for given_values in (values, [2.0, 9.0, 12.0]):
        i = index(h, mask=MASK, image=IMAGE, attributes={"height": given_values})
        assert i.values["height"].tolist() == [2, 9, 12]
        assert i.total(height, "trajectory").tolist() == [2, 21]
        assert i.micro([2]).values["height"].tolist() == [9, 12]
    refuses(
        HierarchyIndexError,
        lambda: index(h, mask=MASK, image=IMAGE, attributes={"height": [1.0] * 6}),
        what="[6]",
        required="[3]",
    )
