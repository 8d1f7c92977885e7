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
        "copies of joined batches share their rows", "auditing/test_reference",
        "            shift = self.size[t] * np.arange(copies)[:, None]", "            shift = 0 * np.arange(copies)[:, None]",
    ),
    slip(
        "one discount serves all parameters", "auditing/test_reference",
        "chunk = 1 if self._has_scans else max(", "chunk = max(",
    ),
    slip(
        "losses whose parameters decide on policy are left out", "auditing/test_identify",
        "        if not all(_is_multiple(o, other, fresh) for o in others):\n            return True\n", "",
    ),
    slip(
        "a bound that no token shows stays where a batch puts it", "auditing/test_identify",
        "between = sharpen(fit, self.function) if fit.is_exact and len(fit.targets.values) else {}", "between = {}",
    ),
    slip(
        "rewards are probed alone in their groups", "auditing/test_identify",
        "self.others = OTHERS if rewards else 0", "self.others = 0",
    ),
    slip(
        "parameters that are given are fitted", "auditing/test_identify",
        "made: dict[str, Any] = dict(self.fixed)", "made: dict[str, Any] = {}",
    ),
    slip(
        "a mask in bfloat16 is a fault", "auditing/test_reports",
        "and not torch.equal(found.to(first.dtype), first):", "and True:",
    ),
    slip(
        "whitening is accused of NaN at large ratios", "auditing/test_reports",
        "if not f.evaluate(b.on_policy()).is_finite:  # it is not the ratio", "if False:",
    ),
    slip(
        "an importance weight upside down that is masked far out passes", "auditing/test_reports",
        "x, c = x[c != 0], c[c != 0]", "pass",
    ),
    slip(
        "the factor of a clipped step is that after clipping", "auditing/test_step",
        "factor = None if compared.factor is None else compared.factor / clip",
        "factor = compared.factor",
    ),
    slip(
        "a division at the end is read as clipping", "auditing/test_step",
        "return simple if abs(norm / simple - 1) <= near else None", "return norm",
    ),
    slip(
        "passes that autograd.grad returns are in the gradient", "trainers/trl/test_audit auditing/test_step",
        "self.passes[-1][name] = self._arrived.pop(name)", "self.passes[-1][name] = self._arrived[name] * 0",
    ),
    slip(
        "an optimizer steps in an audit", "auditing/test_step",
        "        for p in given:\n            p.grad = None\n", "",
    ),
    slip(
        "gradients of ranks are not added up", "auditing/test_step_on_ranks",
        "    dist.all_reduce(found, group=group)\n", "",
    ),
    slip(
        "a micro-batch that is left out has no name", "auditing/test_step",
        "gone = np.abs(times) < 0.05", "gone = np.abs(times) < 0",
    ),
    slip(
        "dropout is drawn in an audit", "auditing/test_step",
        "rate.put(0.0)", "pass",
    ),
)  # fmt: skip
