"""Slips in the loss from hidden states."""

from slips.slip import slip

SLIPS = (
    slip(
        "coefficients of tokens are not those of the rows that are left",
        "head/test_loss",
        "targets, chosen(coefficients, which), self.head.bonus",
        "targets, coefficients[: len(tokens)], self.head.bonus",
    ),
    slip(
        "clipped tokens take part in all products",
        "head/test_products",
        "return None if len(found) == len(coefficients) else found",
        "return None",
    ),
    slip(
        "a row that is longer than a chunk has the coefficients of its first chunk",
        "head/test_loss",
        "len(chunks) > 1 and is_of_tokens(self.op)",
        "len(chunks) > 1",
    ),
    slip(
        "the entropy's gradient lacks the entropy",
        "head/test_loss",
        "return (self.entropy - self.total.log()).mul_(bonus).add_(coefficients)",
        "return self.total.log().neg().mul_(bonus).add_(coefficients)",
    ),
    slip(
        "the bonus is a mean over a micro-batch",
        "head/test_loss",
        "bonus=entropy_bonus / max(index.tokens_of_step, 1)",
        "bonus=entropy_bonus / max(len(index.every), 1)",
    ),
    slip(
        "the slope of the softcap is that at another temperature",
        "head/test_loss",
        "logits.mul_(self.temperature / self.softcap)",
        "logits.mul_(1 / self.softcap)",
    ),
    slip(
        "the gradient of the logits is not divided by the temperature",
        "head/test_loss",
        "            gradient.div_(self.temperature)",
        "            pass",
    ),
    slip(
        "float16 is multiplied in float16",
        "head/test_loss",
        "torch.float64 if dtype == torch.float64 else torch.float32\n        self.is_narrow",
        "torch.float64 if dtype == torch.float64 else torch.float16 if dtype == torch.float16 else torch.float32\n        self.is_narrow",
    ),
    slip(
        "each rank counts the whole objective",
        "head/test_loss",
        "result.objective.double() / part.index.shares",
        "result.objective.double()",
    ),
    slip(
        "an error of one rank leaves the others waiting",
        "head/test_loss",
        "with agreed(group, CALL):\n                for chunk",
        "with agreed(None, CALL):\n                for chunk",
    ),
    slip(
        "rows without tokens are rows of a part",
        "head/test_products",
        "rows, before = index.row_numbers, index.every.before",
        "rows, before = np.arange(index.n_rows), np.searchsorted(index.every.runs.places(), index.bounds)",
    ),
    slip(
        "a micro-batch of a micro-batch has the step's rows",
        "runtime/test_micro",
        "self.rows[_chosen(rows, self.n_rows)]",
        "_chosen(rows, self.n_rows)",
    ),
    slip(
        "on a GPU a row's sum is not moved to its new largest logit",
        "head/test_fused",
        "sums = sums * kept + new",
        "sums = sums + new",
    ),
    slip(
        "on a GPU a block of logits of minus infinity makes the row NaN",
        "head/test_fused",
        'base = tl.where(higher == float("-inf"), 0.0, higher)',
        "base = higher",
    ),
    slip(
        "on a GPU gradients of chosen rows are of the first rows",
        "head/test_fused",
        "source = tl.load(which + row)",
        "source = row",
    ),
    slip(
        "on a GPU rows are overwritten that other programs still read",
        "head/test_fused",
        "aliased = which is not None and into.data_ptr() == z.data_ptr()",
        "aliased = False",
    ),
    slip(
        "on a GPU the gradient is that at temperature 1",
        "head/test_fused",
        "    gradient /= temperature\n",
        "",
    ),
    slip(
        "on a GPU the entropy's sum is not moved to the new largest logit",
        "head/test_fused",
        "products = kept * (products + sums * moved) + new * away",
        "products = kept * products + new * away",
    ),
)
