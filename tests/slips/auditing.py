"""The audit of loss functions."""

from slips.slip import slip

SLIPS = (
    slip(
        "max in place of min is not seen", "auditing/test_planted",
        "if stopped[~outward].any() and not stopped[outward].any():", "if stopped[outward].all():",
    ),
    slip(
        "a place under the mask may get a gradient", "auditing/test_planted",
        "return found.is_finite and bool((found.outside != 0).any())\n\n    if at", "return False\n\n    if at",
    ),
    slip(
        "a gradient of an engine's weight passes where it is truncated", "auditing/test_planted",
        "return bool(is_truncated or np.abs", "return bool(np.abs",
    ),
    slip(
        "a gradient of an engine's weight without bound passes", "auditing/test_planted",
        "return bool(is_truncated or np.abs(slopes - 2).max() < 1e-6)", "return bool(is_truncated)",
    ),
    slip(
        "the ratio to the engine is a weight beside itself", "auditing/test_reports",
        " and abs(low) > 1e-6  # at 0", "  # at 0",
    ),
    slip(
        "k3 exchanged is a term without a name", "auditing/test_planted",
        "has no bound\", np.expm1(y)),", "has no bound\", np.exp(y)),",
    ),
    slip(
        "equal advantages are never tried", "auditing/test_reports",
        "at = with_numbers(at, 0.0)", "return None",
    ),
    slip(
        "any NaN is that of equal advantages", "auditing/test_reports",
        "return other.is_finite and not equal.is_finite", "return not equal.is_finite",
    ),
    slip(
        "a clamp in place that moves nothing of a usual batch passes", "auditing/test_function",
        "for b in (_far(usual), usual):", "for b in (usual,):",
    ),
    slip(
        "advantages of one sign are probed where they are standardised", "auditing/test_reports",
        "c = slope(f.evaluate, x, a, f.whitens)", "c = slope(f.evaluate, x, a)",
    ),
    slip(
        "a coefficient without limit has no remark", "auditing/test_reports",
        "if further > 2 * far > 4 * near > 0:", "if False:",
    ),
    slip(
        "the width of the batch is no share", "auditing/test_reports",
        "share(lambda b: max(b.lengths))", "share(lambda b: b.tokens)",
    ),
    slip(
        "fitted numbers are those that a loss declares", "auditing/test_reports",
        "return math.isclose(value, declared, rel_tol=1e-6) or", "return True or",
    ),
    slip(
        "a loss that is far is the nearest", "auditing/test_reports",
        "if self.losses and (self.asked or not self.losses[0].is_far) else None", "if self.losses else None",
    ),
    slip(
        "a mistake is declared by the loss with its numbers", "auditing/test_reports",
        "_Declared(function, replace(losses[0], parameters={}))", "_Declared(function, losses[0])",
    ),
    slip(
        "failures come in the order of the questions", "auditing/test_reports",
        "for f in (*a.failures, *a.notes, *alone)]", "for f in a.findings if f not in holds or f in alone]",
    ),
    slip(
        "the numbers of a config are fitted in an audit", "cli/test_configs",
        "given = {**like.parameters, **(parameters or {})}", "given = {**(parameters or {})}",
    ),
    slip(
        "a bound that another term hides is denied", "auditing/test_reports",
        "if not said and np.any(f.evaluate(probe(x, np.zeros(len(x)))).coefficients):", "if False:",
    ),
    slip(
        "a clip without a minimum is like any other", "auditing/test_reports",
        'abs(edges["inward"]) < 2 * abs(edges["outward"])', "False",
    ),
    slip(
        "a dual clip is taken for a clip without a minimum", "auditing/test_reports",
        'abs(edges["inward"]) < 2 * abs(edges["outward"])', "True",
    ),
    slip(
        "KEY=VALUE beside --as is dropped", "cli/test_configs",
        "expected([like, *overrides] if like else [], loaded, function)", "expected([like] if like else [], loaded, function)",
    ),
    slip(
        "NaN of a batch is a fault of its padding", "auditing/test_reports",
        "        return not other.is_finite\n", "        return False\n",
    ),
    slip(
        "a loss that divides by one token too many is a mean", "auditing/test_planted",
        "if np.abs(k - k[0]).max() <= MU * abs(k[0]):", "if np.abs(k - k[0]).max() <= abs(k[0]):",
    ),
    slip(
        "a gradient that is NaN is the same as another", "auditing/test_identify",
        "return np.where(np.isfinite(error) & np.isfinite(scale), error, np.inf)", "return error",
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
