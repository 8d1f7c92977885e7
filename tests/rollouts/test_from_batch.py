"""From a trainer's tensors to rollouts: every layout gives the same batch, and errors name the user's place."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import support
import torch

from fibration import Rollouts, RolloutsError, load_rollouts
from fibration.rollouts.replay import build_index, gate

LENGTHS = (3, 1, 0, 4)
B, T, N = 4, 7, sum(LENGTHS)
HOLES = np.array(  # padding on the left, on the right, in between; a row of nothing
    [[0, 1, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, 1], [0] * 7, [1, 1, 1, 0, 0, 1, 0]], bool
)


def drawn(seed: int, upper: float = 0.0) -> np.ndarray:
    """[N] below `upper`, in float32: numbers that bfloat16 and float16 hold too."""
    numbers = np.random.default_rng(seed).exponential(1, N) + 0.01
    return np.asarray(torch.from_numpy(upper - numbers).bfloat16().half().float().numpy())


NEW, OLD, ENGINE = drawn(0), drawn(1), drawn(2)
PER_TOKEN = drawn(3, upper=2.0)
PER_ROW = np.array([1.0, -2.0, 5.0, 0.5], np.float32)
TURNS = [("a", 1), ("a", 1), ("b", 2), None, ("c", 1), ("c", 1), ("a", 1), ("a", 1)]
IMAGE = np.array([1, 0, 0, 1, 1, 0, 0, 1], bool)


def padded(column: Any, filler: Any = np.nan) -> Any:
    """[B, T], with what nobody may read under the mask."""
    whole = np.full((B, T), filler, getattr(column, "dtype", object))
    for at, value in zip(np.argwhere(HOLES).tolist(), column, strict=True):
        whole[tuple(at)] = value
    return whole


def in_rows(column: Any) -> list[Any]:
    stops = np.cumsum(LENGTHS)
    return [list(column[stop - n : stop]) for n, stop in zip(LENGTHS, stops, strict=True)]


def tensor(column: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(column))


LAYOUTS: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "padded": (padded, {"mask": HOLES}),
    "padded tensors": (lambda c: tensor(padded(c)), {"mask": torch.from_numpy(HOLES).long()}),
    "half": (lambda c: tensor(padded(c)).bfloat16().requires_grad_(), {"mask": tensor(HOLES).float()}),
    "padded lists": (lambda c: padded(c).tolist(), {"mask": HOLES.tolist()}),
    "packed": (lambda c: c, {"offsets": np.cumsum([0, *LENGTHS])}),
    "packed tensors": (
        lambda c: tensor(c).double().requires_grad_(),
        {"offsets": torch.tensor([0, 3, 4, 4, 8], dtype=torch.int32)},
    ),
    "packed with a mask": (
        lambda c: tensor(padded(c).reshape(-1)),
        {"mask": HOLES.reshape(-1), "offsets": [0, 7, 14, 21, 28]},
    ),
    "rows": (in_rows, {}),
    "rows of tensors": (lambda c: [torch.tensor(row, dtype=torch.float16) for row in in_rows(c)], {}),
    "nested": (lambda c: torch.nested.nested_tensor([torch.tensor(r) for r in in_rows(c)], layout=torch.jagged), {}),
    "a column of lists": (lambda c: np.array([*in_rows(c), None], object)[:-1], {}),
}  # fmt: skip


def made(layout: str, **more: Any) -> Rollouts:
    lay, how = LAYOUTS[layout]
    return Rollouts.from_batch(lay(NEW), lay(OLD), PER_ROW, **how, **more)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_the_same_batch(layout: str) -> None:
    lay, _ = LAYOUTS[layout]
    turns = in_rows(TURNS) if "row" in layout or layout in ("nested", "a column of lists") else TURNS
    if "padded" in layout or layout == "half":
        turns = padded(np.array([*TURNS, None], object)[:-1], filler="never").tolist()
    elif layout == "packed with a mask":
        turns = padded(np.array([*TURNS, None], object)[:-1], filler="never").reshape(-1)
    found = made(
        layout,
        rewards=lay(PER_TOKEN),
        policies={"rollout": lay(ENGINE), "reference": None},
        masks={
            "image_token": np.nan_to_num(padded(IMAGE)) if "padded" in layout or layout == "half" else in_rows(IMAGE)
        }
        if "packed" not in layout
        else None,
        attributes={"value": lay(PER_TOKEN)},
        prompt_group=np.array([7, 7, 9, 8]),
        domain=["words", "words", np.nan, None],  # of the row of nothing, never read
        turn=turns,
        family=None,
    )
    offsets = [0, 3, 4, 8]  # without the row of nothing
    wide = layout in ("packed tensors", "rows", "padded lists", "a column of lists")  # Python's floats are float64
    for name, column in {"log_probs": NEW, "old_log_probs": OLD, "rewards": PER_TOKEN}.items():
        given = getattr(found, name)
        np.testing.assert_array_equal(given, column)
        assert given.dtype == (np.float64 if wide else np.float32)
    assert found.offsets.tolist() == offsets and found.offsets.dtype == np.int64
    np.testing.assert_array_equal(found.advantages, PER_ROW[[0, 1, 3]])
    assert list(found.policies) == ["rollout"] and list(found.labels) == ["prompt_group", "domain", "turn"]
    assert found.labels["prompt_group"].each == [7, 7, 8] and type(found.labels["prompt_group"].names[0]) is int
    assert found.labels["domain"].each == ["words", "words", None]
    assert found.labels["turn"].each == TURNS and found.labels["turn"].names == (("a", 1), ("b", 2), ("c", 1))
    assert all(np.array_equal(mask, IMAGE) for mask in found.masks.values())
    assert found.token_ids is None
    assert found.provenance["rows"] == 4 and found.provenance["rows without tokens"] == 1


@pytest.mark.parametrize("name", ["fiberpo_domain", "grpo"])
def test_a_recorded_batch_has_the_coefficients_of_the_padded_one(name: str) -> None:
    """Off policy, beyond budgets: what is packed is what the operator sees in the padded tensors."""
    op = support.operator(support.spec(name))
    labels = {"prompt_group": [0, 0, 1, 1], "domain": ["a", "a", "b", "b"]} if name == "fiberpo_domain" else {}
    new, old = (tensor(np.nan_to_num(padded(c.astype(float)))) for c in (NEW, OLD))
    index = op.index(mask=HOLES, **labels)
    expected = op.coefficients(new, old, tensor(PER_ROW.astype(float)), index).values
    r = Rollouts.from_batch(new, old, PER_ROW.astype(float), mask=HOLES, **labels)
    found = gate(op, build_index(op, r), r, {}).result.values
    assert len(set(expected.unique().tolist())) > 4
    torch.testing.assert_close(found, expected[tensor(HOLES)], rtol=1e-12, atol=0)


def test_labels_may_have_any_type() -> None:
    one, other = uuid.uuid4(), uuid.uuid4()
    found = made("rows", user=[one, other, None, one], flag=np.array([True, False, True, True]), half=[0.5, 1, 1, True])
    assert found.labels["user"].names == (str(one), str(other)) and found.labels["user"].of.tolist() == [0, 1, 0]
    assert found.labels["flag"].each == [True, False, True]
    assert found.labels["half"].each == [0.5, 1, 1]  # equal labels are one element, as they are to an index
    tensors = made("padded", expert=torch.arange(B * T).reshape(B, T) % 3, domain=torch.tensor([4, 4, 4, 2]))
    assert tensors.labels["expert"].each == (np.flatnonzero(HOLES) % 3).tolist()
    assert tensors.labels["domain"].each == [4, 4, 2]


def test_from_batch_keeps_the_values(tmp_path: Any) -> None:
    batch = made(
        "padded",
        provenance=["any", {"JSON": 1}],
        token_ids=padded(np.arange(N), filler=-100),
        turn=padded(np.arange(N), filler=-1),
    )
    batch.save(tmp_path / "batch")
    again = load_rollouts(tmp_path / "batch")
    assert again.provenance == ["any", {"JSON": 1}]
    assert again.token_ids is not None and again.token_ids.tolist() == list(range(N))
    assert again.labels["turn"].each == list(range(N))


def changed(at: tuple[int, int], value: float, column: np.ndarray = NEW) -> np.ndarray:
    whole = padded(column)
    whole[at] = value
    return whole


P = {"new": padded(NEW), "old": padded(OLD), "mask": HOLES}
WRONG: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "no mask": ({"mask": None}, "log_probs of shape [4, 7], with no mask and no offsets", "padded [B, T] with mask", "ones_like"),
    "advantages of a column": ({"advantages": PER_ROW[:, None]}, "advantages: shape [4, 1]", "one per row, [4]", ".squeeze(-1)"),
    "one advantage": ({"advantages": 1.0}, "advantages: shape []", "one per row, [4], or one per token, [4, 7]", "repeat it"),
    "advantages of other rows": ({"advantages": PER_ROW[:3]}, "advantages: shape [3]", "one per row, [4]", ""),
    "NaN advantage": ({"advantages": [0, np.nan, 0, 0]}, "advantages[1] is nan", "every row that has a token", "division by 0"),
    "rewards of text": ({"rewards": ["good"] * 4}, "rewards has dtype <U4", "floating-point numbers", ""),
    "attention mask": ({"mask": np.ones((4, 10))}, "mask has shape [4, 10]", "[4, 7], that of log_probs", "mask[:, -7:]"),
    "mask of weights": ({"mask": HOLES * 0.5}, "mask[0, 1] is 0.5", "booleans, or 0 and 1", "> 0"),
    "mask of words": ({"mask": np.full((B, T), "yes")}, "mask[0, 0] is 'yes'", "booleans, or 0 and 1", ""),
    "nothing unmasked": ({"mask": HOLES * 0}, "no unmasked token", "at least one", ""),
    "log-probs above 0": ({"new": changed((3, 2), 0.5)}, "log_probs[3, 2] is 0.5", "at most 0", "not logits"),
    "of half precision": ({"new": changed((3, 2), 2e-3)}, "log_probs[3, 2] is 0.002", "at most 0", "clamp(max=0)"),
    "likelihoods turned round": ({"old": -padded(OLD)}, "old_log_probs[0, 1] is", "8 of 8 tokens above 0", "give -old_log_probs"),
    "NaN of a token": ({"old": changed((0, 3), np.nan, OLD)}, "old_log_probs[0, 3] is nan", "every unmasked token", "mask the token"),
    "one token less": ({"old": padded(OLD)[:, 1:]}, "old_log_probs has shape [4, 6]", "[4, 7]", "one token less"),
    "log-probs of the prompt too": ({"old": np.zeros((4, 12))}, "old_log_probs has shape [4, 12]", "[4, 7]", "old_log_probs[:, -7:]"),
    "a policy of rows": ({"policies": {"rollout": PER_ROW}}, "policies['rollout'] has shape [4]", "[4, 7]", ""),
    "a policy without a name": ({"policies": padded(ENGINE)}, "policies=array", "a mapping from names", ""),
    "the old policy": ({"policies": {"old": padded(OLD)}}, "these are no rollouts", "beside current and old", "'old_log_probs'"),
    "labels of other rows": ({"domain": ["a"] * 5}, "labels of 'domain': shape [5]", "one per row, [4]", ""),
    "one label": ({"domain": "math"}, "labels of 'domain': a str", "one per row, [4]", "['math'] times their number"),
    "a mapping": ({"domain": {"a": "b"}}, "labels of 'domain': a dict", "one per row", ""),
    "labels of a column": ({"domain": [["a"], ["b"], ["c"], ["d"]]}, "labels of 'domain': shape [4, 1]", "one per row", ".squeeze(-1)"),
    "no label": ({"domain": ["a", np.nan, "b", "c"]}, "labels of 'domain': one of them is nan", "None where there is none", ""),
    "no label at all": ({"domain": ["a", {"b": 1}, "b", "c"]}, "{'b': 1} is not hashable", "tuples", ""),
    "names that merge": ({"domain": [uuid.UUID(int=1), str(uuid.UUID(int=1)), 2, 3]}, "two different labels are named", "tell elements apart", ""),
    "top-k experts": ({"expert": np.zeros((4, 7, 2), int)}, "labels of 'expert': shape [4, 7, 2]", "one per token, [4, 7]", "select(-1, 0)"),
    "ragged labels": ({"turn": [[1] * 3, [1], [1], [1] * 7]}, "rows of 1, 3 and 7 entries", "[4, 7]", "pad it"),
    "token ids of floats": ({"token_ids": padded(NEW)}, "token_ids has dtype float32", "whole numbers", ""),
    "padding that is not masked": ({"token_ids": np.full((4, 7), -100)}, "token_ids[0, 1] is -100", "at least 0", "mask what is padding"),
    "a leaf of rows": ({"masks": {"image": [1, 0, 0, 1]}}, "masks['image'] has shape [4]", "[4, 7]", ""),
    "offsets beside padding": ({"mask": None, "offsets": [0, 28]}, "log_probs of shape [4, 7], and offsets", "packed log_probs [N]", ""),
}  # fmt: skip
PACKED = {"new": NEW, "old": OLD, "mask": None, "advantages": None, "offsets": [0, 3, 4, 4, 8]}
WRONG |= {
    "lengths": ({**PACKED, "offsets": list(LENGTHS)}, "offsets do not fit", "from 0 to 8", "numpy.cumsum([0, *lengths])"),
    "an end too early": ({**PACKED, "offsets": [0, 3, 7]}, "offsets do not fit", "they go from 0 to 7", "log_probs[:offsets[-1]]"),
    "decreasing": ({**PACKED, "offsets": [0, 4, 3, 8]}, "offsets do not fit", "from 4 to 3 at 1", ""),
    "offsets of floats": ({**PACKED, "offsets": [0.0, 8.0]}, "offsets delimit no rows", "whole numbers", ""),
    "a batch of one": ({**PACKED, "new": NEW[None]}, "log_probs of shape [1, 8], and offsets", "packed", ".squeeze(0)"),
    "of what is not told": ({**PACKED, "offsets": [0, 2, 2, 2, 4, 5, 6, 7, 8], "advantages": NEW}, "may be per token or per row", "tells which", "without tokens"),
    "log-probs above 0 in a packed batch": ({**PACKED, "new": -NEW}, "log_probs[0] (row 0, its token 0)", "at most 0", ""),
    "a row too short": (
        {**PACKED, "offsets": None, "new": in_rows(NEW), "old": [[-1.0] * n for n in (3, 2, 0, 4)]},
        "old_log_probs[1] has 2 entries", "1, as log_probs[1] has", ""),
    "a row too few": ({**PACKED, "offsets": None, "new": in_rows(NEW), "old": in_rows(OLD)[:3]}, "old_log_probs has 3 rows", "4", ""),
    "not in rows": ({**PACKED, "offsets": None, "new": in_rows(NEW)}, "old_log_probs has shape [8]", "a list of 4 rows", ""),
    "a trainer's word for the mask": ({"response_mask": np.ones((2, 3))}, "stratum 'response_mask'", "mask=", "write mask="),
    "a mask by another name": ({"token_mask": np.ones((2, 3))}, "stratum 'token_mask'", "mask=", "write mask="),
    "lengths in place of offsets": ({"lengths": [3, 5]}, "stratum 'lengths'", "offsets=", "accumulate(lengths)"),
    "one letter too few": ({"advantage": PER_ROW}, "stratum 'advantage'", "advantages=", "write advantages="),
    "labels of rows too few": ({**PACKED, "offsets": None, "new": in_rows(NEW), "old": in_rows(OLD), "domain": "abc".split()}, "shape [1]", "one per row, 4", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_named_by_its_place_in_the_user_s_array(name: str) -> None:
    change, what, why, remedy = WRONG[name]
    given = {**P, "advantages": PER_ROW, **change}
    with pytest.raises(RolloutsError) as error:
        Rollouts.from_batch(given.pop("new"), given.pop("old"), given.pop("advantages"), **given)
    e = error.value
    assert what in e.what
    assert why in f"{e.required} {e.found}" and remedy in e.remedy
    assert e.required


def test_from_batch_imports_no_torch() -> None:
    program = (
        "import sys\nfrom fibration.rollouts import Rollouts\n"
        "Rollouts.from_batch([[-1.0], [-2.0, -1.0]], [[-1.5], [-2.0, -1.0]], [1, 0], domain='a b'.split())\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
