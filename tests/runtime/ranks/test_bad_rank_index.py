"""Input that does not fit is an error on every rank, and names the ranks that differ."""

import numpy as np
import pytest
import torch
from hierarchies.edges import (
    BALANCED,
    CROSSED_EDGES,
    PROJECTED,
    SIGNED,
    N,
    domain,
    hierarchy,
    image,
    trajectory,
)  # fmt: skip
from support import check
from thread_ranks import try_on_ranks

from fibration import (
    Attribute,
    HierarchyIndexError,
    Parameter,
    RanksError,
    SpecError,
    populated,
    proportional,
    total,
    uniform,
)
from fibration.language.atoms import Stratum
from fibration.language.report import Report
from fibration.runtime.operator import Operator
from fibration.runtime.ranks import merge

CHAIN = hierarchy("token -> trajectory", "trajectory -> prompt_group", "prompt_group -> domain", "domain -> batch")
TURNS = hierarchy("token -> turn", "turn -> trajectory", "trajectory -> batch")
BESIDE = hierarchy("token -> trajectory", "token -> expert", "trajectory -> batch", "expert -> batch")
DIFFICULTY = Attribute("difficulty", on=domain, positive=False)
LENGTH = Attribute("length", on=trajectory, positive=False)
WEIGHED = hierarchy(
    "token -> trajectory", "trajectory -> domain",
    kernel=proportional(total(DIFFICULTY, over=domain) + total(LENGTH, over=trajectory)),
)  # fmt: skip
NOTHING = dict(offsets=[0])


def try_index(h, *given):
    """What every rank raises of `op.index(**given[rank])`; with tuples of (hierarchy, given) each its own."""

    def work(group):
        mine, keywords = given[group.rank] if isinstance(given[group.rank], tuple) else (h, given[group.rank])
        return Operator(mine, Report(mine, ()), "none", "", {}, None).index(group=group, **keywords)

    return try_on_ranks(len(given), work)


def refused(kind, h, *given, **expected):
    """All ranks raise it, in the same words."""
    errors = try_index(h, *given).errors
    for error in errors:
        check(error, kind, **expected)
        assert str(error) == str(errors[0])


def index_refused(h, *given, **expected):
    refused(HierarchyIndexError, h, *given, **expected)


ONE = dict(offsets=[0, 2, 3], prompt_group=["g1", "g2"], domain=["math", "math"])
EMPTY = dict(**NOTHING, prompt_group=[], domain=[])


@pytest.mark.sampled
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ({"domain": ["math", None]}, "row 1 has no label for 'domain': None"),
        ({"domain": ["math", float("nan")]}, "row 1 has no label for 'domain': nan"),
        ({"domain": ["math", {}]}, "the label {} of row 1 for 'domain' is not hashable"),
        (
            {"domain": ["math", "code"], "prompt_group": ["g1", "g1"]},
            "prompt_group 'g1' lies over two elements of domain",
        ),
        ({"offsets": [0, 2, 1]}, "the offsets do not delimit rows"),
        ({"color": ["red"]}, "unknown label 'color'"),
        ({"attributes": {"weight": 1}}, "unknown attribute 'weight'"),
        ({"device": "abacus"}, "device='abacus' cannot be used"),
    ],
    ids=lambda x: "" if isinstance(x, str) else " ".join(x),
)
def test_an_argument_that_one_rank_refuses_is_refused_on_all_ranks(rank, bad, what):
    given = [ONE, EMPTY, ONE]
    given[rank] = {**ONE, **bad}
    errors = try_index(CHAIN, *given).errors
    for error in errors:
        check(error, HierarchyIndexError, what=(f"rank {rank}: index of 'h'", what))


def test_an_exception_of_a_label_keeps_its_class_on_its_own_rank():
    class Broken:
        def __hash__(self):
            raise ZeroDivisionError

    errors = try_index(CHAIN, ONE, {**ONE, "domain": ["math", Broken()]}, ONE).errors
    assert [type(e) for e in errors] == [RanksError, ZeroDivisionError, RanksError]


def test_labels_without_a_meaning_in_other_processes_are_refused():
    class Own:
        pass

    index_refused(
        CHAIN, ONE, {**ONE, "prompt_group": [Own(), "g"]},
        what=("rank 1: index of 'h': the label", "for 'prompt_group'"), required="the same in every process",
        found="an object of",
    )  # fmt: skip


def test_an_element_over_two_coarser_elements_is_refused():
    index_refused(
        CHAIN, EMPTY, ONE, {**ONE, "domain": ["code", "math"]},
        what="index of 'h': prompt_group 'g1' lies over two elements of domain",
        required="every prompt_group lies over exactly one domain, on all ranks together",
        found="'math' on rank 1 and 'code' on rank 2", remedy="use for example the pair (domain, prompt_group)",
    )  # fmt: skip


def test_turns_that_every_rank_numbers_from_0_are_refused():
    turns = dict(offsets=[0, 2], turn=[0, 1])
    index_refused(
        TURNS, turns, turns,
        what="turn 0 lies over two elements of trajectory", found="row 0 of rank 0 and row 0 of rank 1",
        remedy="labels are unique in the whole batch: use for example the pair (trajectory, turn)",
    )  # fmt: skip


def test_pieces_of_one_row_with_different_labels_are_refused():
    one, other = ({**ONE, "trajectory": ["r", s], "prompt_group": [g, s]} for g, s in (("a", "s"), ("b", "t")))
    index_refused(
        CHAIN, one, other,
        what="trajectory 'r' lies over two elements of prompt_group", found="'a' on rank 0 and 'b' on rank 1",
        remedy="give all pieces of one trajectory the same prompt_group",
    )  # fmt: skip
    index_refused(
        CHAIN, EMPTY | {"trajectory": []}, {**ONE, "trajectory": ["r", "r"]},
        what="rank 1: index of 'h': trajectory 'r' lies over two elements of prompt_group",
    )  # fmt: skip


def weighed(difficulty=None, length=None, keys=("r", "s"), domains=("math", "code")):
    return dict(
        offsets=[0, 2, 4], trajectory=list(keys), domain=list(domains),
        attributes={"difficulty": {"math": 1, "code": 2} if difficulty is None else difficulty, "length": [3, 4] if length is None else length},
    )  # fmt: skip


def test_attributes_that_differ_between_ranks_are_refused():
    other = dict(keys=("t", "u"))
    index_refused(
        WEIGHED, weighed(), weighed({"math": 1.5, "code": 2}, **other),
        what="attribute 'difficulty' of domain 'math' has two values", required="one number for a domain on all ranks",
        found="1 on rank 0 and 1.5 on rank 1",
    )  # fmt: skip
    index_refused(
        WEIGHED, weighed(), weighed(length=[3, 3.5], keys=("t", "s")),
        what="attribute 'length' of trajectory 's' has two values", found="4 on rank 0 and 3.5 on rank 1",
    )  # fmt: skip
    index_refused(
        WEIGHED, weighed(), weighed(length=[3, 3.5], keys=("t", "t"), domains=("math", "math")),
        what="rank 1: index of 'h': attribute 'length' of trajectory 't' has two values", found="3 and 3.5",
    )  # fmt: skip
    index_refused(
        WEIGHED, weighed(torch.tensor([1.0, 2.0])), weighed(**other),
        what=("rank 0", "attribute 'difficulty' is given in the order of domain elements"), required="a mapping from labels",
    )  # fmt: skip
    assert try_index(WEIGHED, weighed(5), weighed(5, **other)).errors == [None] * 2
    unnamed = {**weighed(length={0: 3, 1: 4}), "trajectory": None}
    index_refused(
        WEIGHED, {**weighed(), "trajectory": None}, unnamed,
        what=("rank 1", "attribute 'length' is a mapping from row numbers, which ranks do not have"),
        required="one number per row of this rank: [2]", remedy="trajectory=keys",
    )  # fmt: skip


def test_labels_per_token_on_one_rank_alone_are_refused():
    per_token = dict(offsets=[0, 2, 3], expert=["a", "b", "c"])
    per_row = dict(offsets=[0, 2, 3], expert=["a", "b"])
    index_refused(
        BESIDE, per_token, dict(**NOTHING, expert=[]), per_row,
        what="ranks give labels for 'expert' of different kinds", required="one per row on every rank, or one per token",
        found="one per row on rank 2 and one per token on rank 0",
    )  # fmt: skip
    either = dict(offsets=[0, 1, 2], expert=["a", "b"])  # which is both
    assert try_index(BESIDE, per_token, either).errors == try_index(BESIDE, per_row, either).errors == [None] * 2


def test_different_hierarchies_or_row_names_on_ranks_are_refused():
    refused(
        RanksError, None, (CHAIN, ONE), (CHAIN.replace(name="g"), ONE),
        what="ranks differ in the hierarchy", found=("'h'", "on rank 0; 'g'", "on rank 1"),
    )  # fmt: skip
    same_name = hierarchy("token -> trajectory", "trajectory -> prompt_group", "prompt_group -> domain")
    refused(RanksError, None, (CHAIN, ONE), (same_name, ONE), what="ranks differ in the hierarchy")
    refused(
        RanksError, CHAIN, ONE, {**ONE, "trajectory": ["r", "s"]},
        what="ranks differ in keys for the rows", found="not given on rank 0; given on rank 1",
    )  # fmt: skip


def test_a_batch_without_tokens_on_any_rank_raises():
    masked = dict(mask=torch.zeros(2, 3), prompt_group=["a", "b"], domain=["c", "d"])
    index_refused(
        CHAIN, EMPTY, masked, dict(mask=torch.zeros(0, 3), prompt_group=[], domain=[]),
        what="the batch is empty", required="on some rank", found="nothing unmasked on any of 3 ranks",
    )  # fmt: skip
    assert try_index(CHAIN, EMPTY, ONE, masked).errors == [None] * 3


def test_a_row_without_a_leaf_on_any_rank_is_refused():
    h = hierarchy("text -> domain", "image -> trajectory", "trajectory -> domain")
    part = dict(offsets=[0, 2], domain=["d"], trajectory=["r"])
    words = {"what": "nothing lies over trajectory 'r'", "required": "a token that is an element of image"}
    index_refused(h, {**part, "image": [0, 0]}, {**part, "image": [0, 0]}, **words)
    assert try_index(h, {**part, "image": [0, 0]}, {**part, "image": [0, 1]}).errors == [None] * 2


def test_more_tokens_than_can_be_added_exactly_are_refused(monkeypatch):
    monkeypatch.setattr(merge, "MOST", 3)
    one, many = dict(offsets=[0, 3], trajectory=["r"]), dict(offsets=[0, 4], trajectory=["s"])
    assert try_index(TURNS, {**one, "turn": [1, 1, 1]}, {**many, "turn": [2, 2, 2, 2]}).errors == [None] * 2
    index_refused(
        TURNS, {**one, "turn": [1, 1, 1]}, {**many, "trajectory": ["r"], "turn": [2, 2, 2, 2]},
        what="rank 1 has 4 tokens of turn 2", required="at most 3 on one rank", remedy="over more ranks",
    )  # fmt: skip
    index_refused(
        BESIDE, {**one, "expert": ["e"] * 3}, {**many, "expert": ["f"] * 4},
        what="rank 1 has 4 tokens of expert 'f'",
    )  # fmt: skip


# ---------------------------------------------------------------- what is assumed of the whole batch


def test_a_branch_may_be_empty_on_one_rank():
    h = hierarchy("text -> trajectory", "image -> trajectory", assume=[populated(image, over=trajectory)])
    part = dict(offsets=[0, 2], trajectory=["r"])
    index_refused(
        h, {**part, "image": [0, 0]}, {**part, "image": [0, 0]},
        what="trajectory 'r' has no image", required="populated(image, over=trajectory) is assumed",
    )  # fmt: skip
    assert try_index(h, {**part, "image": [0, 0]}, {**part, "image": [0, 1]}).errors == [None] * 2


def cells(*found):
    """A row per cell, and as many tokens as it says."""
    first, second, sizes = zip(*found, strict=True)
    return dict(offsets=[0, *np.cumsum(sizes).tolist()], domain=list(first), modality=list(second))


def test_balance_is_that_of_the_whole_batch():
    one, other = cells(("m", "t", 2), ("c", "i", 6)), cells(("m", "i", 4), ("c", "t", 3))
    assert try_index(BALANCED, one, other).errors == [None] * 2
    index_refused(
        BALANCED, cells(("m", "t", 2), ("c", "i", 7)), other,
        what="balanced(domain, modality) is assumed",
        found="domain 'c' and modality 't' share the mass 3, and balance requires 3.125",
    )  # fmt: skip


def test_effects_are_separated_by_the_tokens_of_all_ranks():
    one, other = cells(("m", "t", 2)), cells(("m", "i", 4), ("c", "t", 3))
    assert try_index(PROJECTED, one, other).errors == [None] * 2
    index_refused(
        PROJECTED, one, cells(("c", "i", 3)),
        what="effects of crossed strata cannot be separated", found="domain 'm' and modality 't' always occur together",
    )  # fmt: skip
    experts = hierarchy(
        "token -> trajectory", "token -> expert", "trajectory -> batch", "expert -> batch",
        kernel=proportional(N), orthogonalise="projection",
    )  # fmt: skip
    apart = dict(offsets=[0, 2], expert=["e", "e"])
    index_refused(
        experts, apart, {**apart, "expert": ["f", "f"]},
        what="effects of crossed strata cannot be separated", found=("trajectory 0", "expert 'e'", "always occur together"),
    )  # fmt: skip
    assert try_index(experts, apart, {**apart, "expert": ["e", "f"]}).errors == [None] * 2


def test_elements_without_mass_on_all_ranks_are_refused():
    h = hierarchy(*CROSSED_EDGES, kernel=proportional(total(SIGNED)), orthogonalise="projection")
    one, other = cells(("a", "b", 2)), cells(("a", "c", 1), ("d", "b", 1))
    index_refused(
        h, {**one, "attributes": {"signed": [2.0, 3.0]}}, {**other, "attributes": {"signed": [1.0, -1.0]}},
        what=("rank 1: index of 'h': the kernels give token [1] of row 1 (trajectory 2)", "the mass -0.2"), required="not negative",
    )  # fmt: skip
    share = Parameter("share", upper=1.0)
    kernels = {"text -> trajectory": uniform(share), "image -> trajectory": uniform(1 - share)}
    edges = ("text -> trajectory", "image -> trajectory", *CROSSED_EDGES[1:])
    masked = {**other, "image": [0, 1]}
    refused(
        SpecError, hierarchy(*edges, kernels=kernels, orthogonalise="projection"), masked, masked,
        what="the parameter 'share'",
    )  # fmt: skip


# ---------------------------------------------------------------- a stratum called as the keyword


def test_a_group_under_another_keyword_is_refused():
    op = Operator(CHAIN, Report(CHAIN, ()), "none", "", {}, None)
    (found,) = try_on_ranks(1, lambda group: op.index(**ONE, mesh=group)).errors
    check(
        found,
        HierarchyIndexError,
        what="unknown label 'mesh'",
        remedy="the ranks that share the batch are group=",
    )
    with pytest.raises(HierarchyIndexError, match="unknown label 'mesh'") as labelled:
        op.index(**ONE, mesh=["a", "b"])
    assert "group=" not in str(labelled.value)


def test_a_stratum_named_group_is_accepted():
    h = hierarchy("token -> trajectory", "trajectory -> group", "group -> batch")
    op = Operator(h, Report(h, ()), "none", "", {}, None)
    assert op.index(offsets=[0, 1, 2], group=["a", "b"]).labels["group"] == ("a", "b")
    index_refused(
        h, dict(offsets=[0, 1]), dict(offsets=[0, 1]),
        what="group= are the ranks, and the labels of the stratum 'group'", remedy="rename the stratum 'group'",
    )  # fmt: skip
    rows = hierarchy("token -> group", "group -> batch", rows=Stratum("group"))
    assert try_index(rows, dict(offsets=[0, 1]), dict(offsets=[0, 1])).errors == [None] * 2
    with pytest.raises(RanksError, match="the group is a list"):
        Operator(CHAIN, Report(CHAIN, ()), "none", "", {}, None).index(**ONE, group=["a", "b"])
