"""The audit of loss functions."""

from slips.slip import slip

SLIPS = (
    slip(
        "max in place of min is not seen", "auditing/test_planted",
        "if stopped[~outward].any() and not stopped[outward].any():", "if stopped[outward].all():",
    ),
    slip(
        "a place under the mask may get a gradient", "auditing/test_planted",
        "return bool((f.evaluate(b).outside != 0).any())", "return False",
    ),
    slip(
        "a loss that divides by one token too many is a mean", "auditing/test_planted",
        "if np.abs(k - k[0]).max() <= MU * abs(k[0]):", "if np.abs(k - k[0]).max() <= abs(k[0]):",
    ),
    slip(
        "a gradient that is NaN is the same as another", "auditing/test_identify",
        "np.isfinite(other.coefficients).all() and np.isfinite(found.coefficients).all()",
        "np.isfinite(other.coefficients).all()",
    ),
    slip(
        "bounds are tried once, before the scale is known", "auditing/test_planted",
        "        for first in (self.among, lambda _: False):", "        for first in (self.among,):",
    ),
    slip(
        "parameters that are given are fitted", "auditing/test_identify",
        "made: dict[str, Any] = dict(self.fixed)", "made: dict[str, Any] = {}",
    ),
)  # fmt: skip
