"""Labels, masks, offsets and attributes that do not fit are refused when the index is built."""

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import operator, prompt_group, refuses, spec, token, trajectory

from fibration import (
    Attribute,
    BatchError,
    Fibration,
    Gate,
    Hierarchy,
    HierarchyIndexError,
    clip_gate,
    identity_gate,
    log_ratio,
    proportional,
    residual,
    total,
    trajectory_mean,
    uniform,
)
from fibration.language.atoms import Stratum

DOMAIN = operator(spec("fiberpo_domain"))
FIBERPO = operator(spec("fiberpo"))
MASK = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
GOOD = {"prompt_group": ["p", "q", None], "domain": ["m", "c", None]}


# ---------------------------------------------------------------- labels


def labelled(**changes):
    labels = {**GOOD, **changes}
    return lambda: DOMAIN.index(mask=MASK, **{k: v for k, v in labels.items() if v is not None})


def test_the_unchanged_labels_are_valid():
    assert labelled()().size["domain"] == 2


LABELS = {
    "too few": (
        {"prompt_group": ["p", "q"]},
        dict(what=("'fiberpo_domain'", "2 labels for 'prompt_group'"), required="one per row, 3, or one per token, shape [3, 3]"),
    ),
    "one per place": (
        {"prompt_group": ["p"] * 9},
        dict(what="9 labels for 'prompt_group'", remedy="labels per token of padded rows need their shape: .reshape(3, 3)"),
    ),
    "one per row with tokens": ({"domain": ["m", "c"]}, dict(what="2 labels for 'domain'", remedy="rows without tokens take a label too")),
    "a column of its own": (
        {"prompt_group": torch.tensor([[0], [1], [2]])},
        dict(what="the labels for 'prompt_group' have shape [3, 1]", remedy=".squeeze(-1)"),
    ),
    "a table": ({"domain": SimpleNamespace(columns=["domain"])}, dict(what="are a SimpleNamespace", remedy="pass one of its columns")),
    "a generator": ({"domain": (d for d in "mcm")}, dict(what="are a generator", remedy="as a list")),
    "several per token": (
        {"prompt_group": torch.zeros(3, 3, 2, dtype=torch.int64)},
        dict(
            what="token [0, 0] has 2 labels for 'prompt_group': [0, 0]", required="one prompt_group for each token, shape [3, 3]",
            remedy=("x[..., 0]", "tuple(sorted(...))", "x.argmax(-1)"),
        ),
    ),
    "one in a list per token": (
        {"prompt_group": torch.zeros(3, 3, 1, dtype=torch.int64)},
        dict(what="token [0, 0] has 1 labels for 'prompt_group': [0]", remedy=".squeeze(-1)"),
    ),
    "a mistake in the word": ({"Domain": ["m"] * 3}, dict(what="unknown label 'Domain'", remedy="did you mean 'domain'?")),
    "all of them": ({"labels": GOOD}, dict(what="unknown label 'labels'", remedy="every stratum has its own keyword, domain=..., prompt_group=...")),
    "a mask of attention": ({"attention_mask": MASK}, dict(what="unknown keyword 'attention_mask'", remedy="mask=..., True on response tokens only")),
    "positions": ({"position_ids": MASK}, dict(what="unknown keyword 'position_ids'", remedy="pass it as positions=...")),
    "of a call": ({"advantages": [1.0] * 3}, dict(what="unknown keyword 'advantages'", remedy="op.loss(...) takes it")),
    "too many": ({"domain": ["m"] * 4}, dict(what="4 labels for 'domain'", required="one per row, 3")),
    "missing": (
        {"domain": None},
        dict(what="no labels for 'domain'", required="domain=[one label per row]", found="labels for prompt_group", remedy="pass domain=..."),
    ),
    "unknown": (
        {"prompt_groups": ["p", "q", "r"]},
        dict(what="unknown label 'prompt_groups'", required="labels for domain, prompt_group", found="token → trajectory → prompt_group → domain"),
    ),
    "for tokens": ({"token": ["p", "q", "r"]}, dict(what="unknown label 'token'")),
    "none": ({"domain": ["m", None, "m"]}, dict(what=("row 1 has no label for 'domain'", "None"), required="exactly one domain", remedy="mask it, or give it a label of its own")),
    "nan": ({"domain": ["m", math.nan, "m"]}, dict(what=("row 1 has no label for 'domain'", "nan"))),
    "unhashable": (
        {"prompt_group": [["p"], {"q": 1}, "r"]},
        dict(what=("the label ['p']", "'prompt_group'", "row 0", "not hashable"), required="hashable"),
    ),
    "unhashable too": ({"prompt_group": ["p", {"q": 1}, "r"]}, dict(what=("{'q': 1}", "row 1"))),
    "a text": ({"domain": "mcm"}, dict(what="the labels for 'domain' are a str", required="one label per row")),
    "a number": ({"domain": 3}, dict(what="the labels for 'domain' are an int")),
    "a set": ({"domain": {"m", "c", "d"}}, dict(what="the labels for 'domain' are a set")),
    "in two domains": (
        {"prompt_group": ["p", "p", "q"]},
        dict(
            what=("prompt_group 'p' lies", "two", "domain"), required="every prompt_group lies over exactly one domain",
            found=("'m'", "'c'"), remedy="labels are unique in the whole batch: use for example the pair (domain, prompt_group)",
        ),
    ),
    "ragged": ({"prompt_group": [["p"] * 3, ["p"] * 2, ["p"] * 3]}, dict(what="the labels for 'prompt_group' are ragged", required="[3, 3]")),
    "a token without": (
        {"prompt_group": [["p", None, None], ["p"] * 3, ["p"] * 3]},
        dict(what=("token 1 has no label for 'prompt_group'",)),
    ),
    "rows that share a name": ({"trajectory": ["a", "a", "b"]}, dict(what="two rows are called 'a'", required="one name per trajectory")),
    "a trajectory in two groups": (
        {"prompt_group": [["p", "q", "x"], ["q"] * 3, ["q"] * 3]},
        dict(
            what=("trajectory 0 lies", "two", "prompt_group"), found="'p' at token [0, 0] and 'q' at token [0, 1]",
            remedy="give one prompt_group per trajectory",
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", LABELS)
def test_wrong_labels_are_refused(which):
    changes, expected = LABELS[which]
    refuses(HierarchyIndexError, labelled(**changes), **expected)


@pytest.mark.parametrize("given", [["u", "v", "w"], torch.arange(3), np.arange(3), np.arange(3)[:, None]])
def test_labels_per_row_of_a_stratum_within_rows_are_refused(given):
    """Each row would be one turn. What the remedy says gives this, if it is meant."""
    op, groups = operator(spec("fiberpo_turns")), {"prompt_group": ["a", "b", "a"]}
    for layout, shape in ({"mask": MASK}, [3, 3]), ({"offsets": [0, 2, 3, 7]}, [7]):
        with pytest.raises(HierarchyIndexError, match="labels for 'turn'") as error:
            op.index(**layout, **groups, turn=given)
        required = f"shape {shape}: 'turn' lies between tokens and trajectory"
        assert error.value.required.removeprefix("one per token, ") == required
        spread = error.value.remedy.partition("turn=")[2]
        names = {"np": np, "turn": given, "offsets": layout.get("offsets")}
        index = op.index(**layout, **groups, turn=eval(spread, names))
        assert index.size["turn"] == index.size["trajectory"] and index.size["token"] > index.size["turn"]


def test_a_stratum_that_equals_the_rows_is_refused_with_the_remedy_rows():
    """A stratum that the rows are, but that is not declared so: the remedy says how."""
    sample = Stratum("sample")
    h = Hierarchy(
        name="samples",
        fibrations=[Fibration(token, sample, uniform())],
        gates={sample: identity_gate(), token: identity_gate()},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
    refuses(HierarchyIndexError, lambda: operator(h).index(mask=MASK), remedy="declare Hierarchy(rows=sample)")


# ---------------------------------------------------------------- masks and offsets

with warnings.catch_warnings(action="ignore"):  # a prototype, says torch
    NESTED = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
INDEXES = {
    "nothing": ({}, dict(what=("index of 'fiberpo'", "neither mask nor offsets"), required="mask=[B, T] for padded tokens")),
    "twos": ({"mask": torch.tensor([[1, 2]])}, dict(what="the mask has values other than 0 and 1", required="booleans, or 0 and 1", found="dtype int64, 2 at [0, 1]")),
    "fractions": ({"mask": torch.tensor([[0.5, 1.0]])}, dict(what="the mask has values other than 0 and 1")),
    "nan": ({"mask": torch.tensor([[math.nan, 1.0]])}, dict(what="the mask has values other than 0 and 1")),
    "negative": ({"mask": torch.tensor([[-1, 1]])}, dict(what="the mask has values other than 0 and 1")),
    "text": ({"mask": [["1", "0"]]}, dict(what="the mask has values other than 0 and 1", found="dtype <U1, '1' at [0, 0]")),
    "no value": ({"mask": [[True, None]]}, dict(what="the mask has values other than 0 and 1", found="dtype object, None at [0, 1]")),
    "an object": ({"mask": {}}, dict(what="the mask has values other than 0 and 1", found="dtype object, {}")),
    "complex": ({"mask": torch.ones(1, 2, dtype=torch.complex64)}, dict(what="the mask has values other than 0 and 1", found="dtype complex64, (1+0j) at [0, 0]")),
    "more tokens than memory": ({"offsets": [0, 2**62]}, dict(what="the offsets end at 4611686018427387904", required="memory allows")),
    "offsets beyond integers": ({"offsets": np.array([0, 2**63], np.uint64)}, dict(what="the offsets reach 9223372036854775808")),
    "attributes that are a number": ({"mask": MASK, "attributes": 5}, dict(what="attributes=5", required="a mapping", found="none")),
    "attributes that are a list": ({"mask": MASK, "attributes": [1, 2]}, dict(what="attributes=[1, 2]", required="a mapping")),
    "one dimension": ({"mask": torch.ones(4)}, dict(what="the mask has shape [4]", required="a packed [N] together with offsets")),
    "three dimensions": ({"mask": torch.ones(2, 2, 2)}, dict(what="the mask has shape [2, 2, 2]")),
    "a scalar": ({"mask": torch.tensor(1)}, dict(what="the mask has shape []")),
    "ragged mask": ({"mask": [[1, 1], [1]]}, dict(what="the mask: rows of several lengths")),
    "all masked": ({"mask": torch.zeros(2, 3)}, dict(what="the batch is empty", required="at least one unmasked token", found="shape [2, 3]", remedy="skip the update")),
    "no rows": ({"mask": torch.zeros(0, 3)}, dict(what="the batch is empty", found="shape [0, 3]")),
    "no columns": ({"mask": torch.zeros(3, 0)}, dict(what="the batch is empty")),
    "empty offsets": ({"offsets": [0, 0, 0]}, dict(what="the batch is empty", found="shape [0]")),
    "decreasing": ({"offsets": [0, 4, 2, 6]}, dict(what="the offsets do not delimit rows", required="starting at 0, never decreasing", found="offsets[2] is smaller than the one before")),
    "late start": ({"offsets": [1, 4]}, dict(what="the offsets do not delimit rows", found="they start at 1")),
    "negative start": ({"offsets": [-1, 4]}, dict(what="the offsets do not delimit rows", found="they start at -1")),
    "one offset": ({"offsets": [0]}, dict(what="offsets of shape [1]", required="[n + 1]")),
    "float offsets": ({"offsets": [0.0, 2.0]}, dict(what="offsets of shape [2] and dtype float64", required="whole numbers")),
    "boolean offsets": ({"offsets": [False, True]}, dict(what="dtype bool")),
    "two-dimensional offsets": ({"offsets": [[0, 2]]}, dict(what="offsets of shape [1, 2]")),
    "ragged offsets": ({"offsets": [[0, 2], [1]]}, dict(what="the offsets: rows of several lengths")),
    "lengths that disagree": ({"offsets": [0, 3], "mask": [1, 1]}, dict(what="the mask has shape [2]", required="[3], the length in the offsets")),
    "the mask by another name": ({"response_mask": MASK}, dict(what="unknown keyword 'response_mask'", remedy="pass it as mask=...")),
    "offsets by another name": ({"cu_seqlens": [0, 2]}, dict(what="unknown keyword 'cu_seqlens'", remedy="pass it as offsets=...")),
    "lengths": ({"lengths": [2, 3]}, dict(what="unknown keyword 'lengths'", remedy="[0, *itertools.accumulate(lengths)]")),
    "lengths for offsets": ({"offsets": [3, 1, 2]}, dict(what="the offsets do not delimit rows", remedy="from lengths pass [0, 3, 4, 6]")),
    "ends or lengths": ({"offsets": torch.tensor([2, 3])}, dict(what="the offsets do not delimit rows", remedy="from lengths pass [0, 2, 5], from row ends pass [0, 2, 3]")),
    "both, padded": ({"mask": MASK, "offsets": [0, 3, 9]}, dict(what="the mask has shape [3, 3]", required="[9], the length in the offsets", remedy="leave offsets out")),
    "a last dimension": ({"mask": MASK[..., None]}, dict(what="the mask has shape [3, 3, 1]", remedy="mask.squeeze(-1)")),
    "labels of a loss": ({"mask": torch.tensor([[7, -100]])}, dict(what="the mask has values other than 0 and 1", remedy="labels != -100")),
    "a mask that is added": ({"mask": torch.tensor([[0.0, -math.inf]])}, dict(what="the mask has values other than 0 and 1", remedy="== 0")),
    "token ids": ({"mask": torch.tensor([[7, 0]])}, dict(what="the mask has values other than 0 and 1", remedy="ids != pad_token_id")),
    "a nested tensor": ({"mask": NESTED}, dict(what="the mask: a nested tensor", remedy="x.to_padded_tensor(0)")),
    "a sparse tensor": ({"mask": MASK.to_sparse()}, dict(what="the mask: a tensor of the layout torch.sparse_coo", remedy="x.to_dense()")),
    "unknown label": ({"mask": MASK, "domain": ["m"] * 3}, dict(what="no stratum 'domain'", required="no labels", remedy="leave domain= out")),
    "ranks by another name": ({"mask": MASK, "process_group": None}, dict(what="unknown keyword 'process_group'", remedy="the ranks that share the batch are group=")),
    "unknown attribute": ({"mask": MASK, "attributes": {"weight": 1}}, dict(what="unknown attribute 'weight'", required="one of none")),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("which", INDEXES)
def test_wrong_arguments_of_an_index_are_refused(which):
    arguments, expected = INDEXES[which]
    refuses(HierarchyIndexError, lambda: FIBERPO.index(**arguments), **expected)


def test_arguments_without_a_keyword_are_refused():
    refuses(
        HierarchyIndexError, lambda: DOMAIN.index(MASK, ["p"]), what="'fiberpo_domain': a Tensor and a list without a keyword",
        required=("mask=[B, T]", "labels for domain, prompt_group"), remedy="op.index(mask=mask, domain=..., prompt_group=...)",
    )  # fmt: skip


def test_columns_of_tables_are_accepted_as_labels():
    """As pandas, polars and pyarrow have them."""
    expected = labelled()().labels
    for way in ("tolist", "to_list", "to_pylist"):
        columns = {name: SimpleNamespace(**{way: lambda values=values: values}) for name, values in GOOD.items()}
        assert labelled(**columns)().labels == expected


def test_an_index_of_another_batch_is_refused():
    index, other = labelled()(), torch.zeros(4, 3)
    refuses(
        BatchError,
        lambda: DOMAIN.loss(other, other, torch.zeros(4), index),
        what="has shape [4, 3]",
        remedy="index.micro(rows)",
    )


# ---------------------------------------------------------------- attributes

weight = Attribute("weight", on=trajectory)
shift = Attribute("shift", on=token, positive=False)
share = Attribute("share", on=token, upper=1)
level = Attribute("level", on=trajectory, positive=False, lower=-0.5, upper=0)
WEIGHTED = operator(
    Hierarchy(
        name="weighted",
        fibrations=[
            Fibration(token, trajectory, uniform()),
            Fibration(trajectory, prompt_group, proportional(total(weight))),
        ],
        gates={prompt_group: identity_gate(), trajectory: identity_gate(), token: Gate(residual + 0 * shift)},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
)
FINE = {"weight": [1.0, 2.0], "shift": [0.0, -1.0, 2.0]}
ATTRIBUTES = {
    "missing": ({"shift": FINE["shift"]}, dict(what=("attribute 'weight' is missing",), required="attributes={'weight': one number per trajectory}")),
    "unknown": ({**FINE, "colour": [1]}, dict(what="unknown attribute 'colour'", required="one of weight, shift")),
    "zero": ({**FINE, "weight": [1.0, 0.0]}, dict(what="attribute 'weight' of trajectory 1 is 0", required="a finite number above 0", remedy="positive=False")),
    "negative": ({**FINE, "weight": [-1.0, 1.0]}, dict(what="attribute 'weight' of trajectory 0 is -1")),
    "nan": ({**FINE, "shift": [0.0, math.nan, 1.0]}, dict(what=("attribute 'shift' of token 1 is nan",), required="a finite number")),
    "infinite": ({**FINE, "weight": [math.inf, 1.0]}, dict(what="attribute 'weight' of trajectory 0 is inf")),
    "shape": ({**FINE, "weight": [1.0, 2.0, 3.0]}, dict(what="attribute 'weight' has shape [3]", required="one number per trajectory: [2]")),
    "label": ({**FINE, "weight": {0: 1.0}}, dict(what="attribute 'weight' has no value for trajectory [1]")),
    "text": ({**FINE, "weight": ["heavy", "light"]}, dict(what="attribute 'weight'", required="numbers")),
    "tokens by label": ({**FINE, "shift": {0: 1.0}}, dict(what="attribute 'shift' is a mapping, and token elements have no labels", required="one number per token: an array of the shape [3]")),
    "huge": ({**FINE, "weight": [10**400, 1]}, dict(what="attribute 'weight'", required="real numbers, which convert to float64")),
    "too huge to print": ({**FINE, "weight": {0: 10**5000, 1: 1}}, dict(what="attribute 'weight'", required="real numbers, which convert to float64")),
    "none by label": ({**FINE, "weight": {0: 1.0, 1: None}}, dict(what="attribute 'weight'")),
}  # fmt: skip


@pytest.mark.parametrize("which", ATTRIBUTES)
def test_wrong_attributes_are_refused(which):
    given, expected = ATTRIBUTES[which]
    refuses(
        HierarchyIndexError,
        lambda: WEIGHTED.index(offsets=[0, 2, 3], prompt_group=["a", "a"], attributes=given),
        **expected,
    )


RANGED = operator(
    Hierarchy(
        name="ranged",
        fibrations=[Fibration(token, trajectory, uniform())],
        gates={trajectory: Gate(residual + 0 * level), token: Gate(residual + 0 * share)},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
)


def test_attributes_at_the_ends_of_their_range_are_accepted():
    index = RANGED.index(offsets=[0, 2, 3], attributes={"share": [1.0, 1e-300, 0.5], "level": [-0.5, 0.0]})
    assert index.values["share"].tolist() == [1.0, 1e-300, 0.5]


@pytest.mark.parametrize(
    ("changed", "what", "required"),
    [
        ({"share": [1.0, 1.5, 0.5]}, "attribute 'share' of token 1 is 1.5", "a finite number in (0, 1]"),
        ({"share": [0.0, 0.5, 0.5]}, "attribute 'share' of token 0 is 0", "a finite number in (0, 1]"),
        ({"level": [0.0, -0.75]}, "attribute 'level' of trajectory 1 is -0.75", "a finite number in [-0.5, 0]"),
        ({"level": [0.5, -0.5]}, "attribute 'level' of trajectory 0 is 0.5", "a finite number in [-0.5, 0]"),
    ],
)
def test_attributes_outside_their_range_are_refused(changed, what, required):
    given = {"share": [1.0, 0.5, 0.5], "level": [0.0, -0.5], **changed}
    refuses(
        HierarchyIndexError,
        lambda: RANGED.index(offsets=[0, 2, 3], attributes=given),
        what=what,
        required=required,
        remedy="give values inside it, or declare another",
    )


def test_a_stratum_may_be_named_self():
    me = Stratum("self")
    h = Hierarchy(
        name="selves",
        fibrations=[Fibration(token, trajectory, uniform()), Fibration(trajectory, me, uniform())],
        gates={me: identity_gate(), trajectory: identity_gate(), token: clip_gate(0.1)},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
    op = operator(h)
    index = op.index(offsets=[0, 1, 2], self=["a", "b"])
    assert index.labels["self"] == ("a", "b")
    assert op.gate(torch.zeros(2), index).tolist() == [1, 1]


def test_the_unchanged_attributes_are_valid():
    WEIGHTED.index(offsets=[0, 2, 3], prompt_group=["a", "a"], attributes=FINE)


def test_an_error_is_one_block_of_text():
    with pytest.raises(HierarchyIndexError) as caught:
        labelled(prompt_group=["p", "p", "q"])()
    lines = str(caught.value).splitlines()
    assert [line[:12] for line in lines] == ["index of 'fi", "  required: ", "  found:    ", "  fix:      "]
