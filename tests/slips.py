"""Slips in the source, for `mutations.py`: those that `mutants` cannot express, because they change no program.

A slip is one text of the library that occurs once, what it becomes, and patterns of the test files that should notice.
"""

from __future__ import annotations

from typing import NamedTuple


class Slip(NamedTuple):
    name: str
    likely: tuple[str, ...]  # patterns of paths under `tests/`, in the order in which they are tried
    old: str
    new: str


def _slip(name: str, likely: str, old: str, new: str) -> Slip:
    return Slip(name, tuple(likely.split()), old, new)


SLIPS = (
    # fibration/laws
    _slip(
        "a token that its advantage pushes out is reversed", "laws/test_reversal",
        "c * x > 0 > a * x", "c * x > 0 < a * x",
    ),
    _slip(
        "giving up first_order covers positivity", "laws/test_verify laws*positivity laws*right laws*first_order grammar documents",
        'COVERS = {"first_order": ("first_order", "identity")}',
        'COVERS = {"first_order": ("first_order", "identity", "positivity")}',
    ),
    _slip(
        "a weight that may be 0 counts as one above 0", "laws*markov laws*reflecting laws*orthogonality corpus/test_judges",
        "Claim(f.weight, subject.at(f.source), POSITIVE)",
        "Claim(f.weight, subject.at(f.source), frozenset({0, 1}))",
    ),
    _slip(
        "what is out of time is kept", "laws*timeout",
        "    if not in_time or any(v.internal_error", "    if in_time is None or any(v.internal_error",
    ),
    _slip(
        "a fix is offered without a trial", "laws/test_remedies",
        "isinstance(o, Fix) and self._holds(o, d.subject, subject.before, decide)", "isinstance(o, Fix)",
    ),
    _slip(
        "a reason covers a law that nobody has decided", "laws*timeout",
        'return self.status != "proved" and not self.is_unfinished', 'return self.status != "proved"',
    ),
    _slip(
        "a mask that may hold is open", "laws/test_agreement",
        "all(vanishes(e - 1) for e in ends) for ends in found)", "any(vanishes(e - 1) for e in ends) for ends in found)",
    ),
    _slip(
        "the sign of a denominator is forgotten", "laws*markov laws*reflecting laws*identity corpus/test_judges",
        "found = multiplied(found, raised(factor(f), p))",
        "found = multiplied(found, raised(factor(f), max(p, 0)))",
    ),
    _slip(
        "too many cases count as proved", "too_many laws*markov laws*reflecting laws*identity laws*first_order corpus/test_judges",
        "branches = cases(self.formula, self.assume)\n        except TooManyCases:\n            return False",
        "branches = cases(self.formula, self.assume)\n        except TooManyCases:\n            return True",
    ),
    _slip(
        "a claim needs no value", "laws*markov laws*reflecting laws*objective laws*first_order corpus/test_judges",
        "return all(case.defined(self.assume) and self._has_sign(case) for case in branches)",
        "return all(self._has_sign(case) for case in branches)",
    ),
    _slip(
        "the own reward is no part of its group's mean", "laws/test_baseline",
        "return replace(inside.times(share), rest=True)", "return Parts(rest=True)",
    ),
    _slip(
        "what comes after a token is its prefix to the law causal", "laws/test_causal",
        'one: When = "earlier" if forward else "later"', 'one: When = "earlier"',
    ),
    _slip(
        "penalties are no part of a loss", "laws*equivalent_terms",
        "if has_same_penalties(self.pair):", "if not has_same_penalties(self.pair) or self.places:",
    ),
    _slip(
        "what is 0 to fifty digits is 0", "laws*search laws*recovery",
        'raise NoValue("a division by 0") if d.low == d.high else Unsure', 'raise NoValue("a division by 0")',
    ),
    _slip(
        "a gradient flows through what is detached", "laws/test_exact_statistics",
        "return self.read(node.operand, element)", "return self.read(node.operand, element, moves)",
    ),
    _slip(
        "numbers in JSON have six digits", "laws/test_wrong laws/test_recovery laws/test_first_order",
        "_size(value) > MOST_BITS else str(value)", "_size(value) > MOST_BITS else shown(value)",
    ),
    # fibration/language
    _slip(
        "the domain of sqrt is forgotten", "test_operators laws*markov laws*recovery laws*identity corpus/test_judges laws*first_order laws*right laws*wrong",
        "domain=lambda x: ((x, NOT_NEGATIVE),), slopes=lambda x, y: (1 / (2 * y),), positive=all,",
        "domain=everywhere, slopes=lambda x, y: (1 / (2 * y),), positive=all,",
    ),
    _slip(
        "what is stopped moves", "test_token_formulas",
        "if formula.operator == STOP or formula.is_condition:", "if formula.is_condition:",
    ),
    _slip(
        "the budget itself is rolled back", "gradients",
        "where(drift <= budget, residual,", "where(drift < budget, residual,",
    ),
    _slip(
        "at x = 0 a token is in both sign channels", "gradients shipped first_order",
        '"-": where(x >= 0, 0, -(s * x))', '"-": where(x > 0, 0, -(s * x))',
    ),
    # fibration/compiler
    _slip(
        "what only the objective reads is not coupled", "compiler/test_coupling",
        "read = {*replace(self.program, outputs=outputs).nodes(), *self._behind([*j.added, *j.factors])}",
        "read = {*replace(self.program, outputs=outputs).nodes()}",
    ),
    _slip(
        "a penalty that is not 0 leaves rows dead", "runtime/test_live",
        "{leaf: needed if value == 0.0 else None for", "{leaf: needed or frozenset() for",
    ),
    # fibration/runtime
    _slip(
        "a micro-batch is licensed by its own parameters", "compiler/test_split",
        "whole = values if step is None else", "whole = values if True else",
    ),
    # fibration/compiler
    _slip(
        "what a prefix is compared with is rounded", "test_order",
        "for n, read in scans if _jumps(n.body, read)}", "for n, read in scans if False}",
    ),
    _slip(
        "parts of a term are too large to add up exactly", "compiler*plans_on_ranks",
        "RANGE = 2.0**69", "RANGE = 2.0**72",
    ),
    _slip(
        "0 - x is x", "test_rules test_optimise",
        "    Rule(sub(ZERO, X), neg(X)),\n", "    Rule(sub(ZERO, X), X),\n",
    ),
    _slip(
        "a contribution that comes twice counts once", "test_adjoint gradients",
        "weights = [nodes.count(n) for n in unique]", "weights = [1 for n in unique]",
    ),
    _slip(
        "gradients flow through the order that a gate reads", "test_order",
        "{a: Detach(self.atom(a, stratum.name)) for a in atoms(formula, Ordered)",
        "{a: self.atom(a, stratum.name) for a in atoms(formula, Ordered)",
    ),
    _slip(
        "what is dropped is multiplied by 0", "test_weights_and_statistics",
        'return Map(ir.scalar("select", ir.scalar("lt", ZERO, ir.arg(0)), ir.arg(1), ZERO), (kept, node))',
        'return Map(ir.scalar("mul", ir.arg(0), ir.arg(1)), (kept, node))',
    ),
    _slip(
        "any factor leaves a maximum", "compiler/test_hoist",
        'push.reduce == "max" and not (found.is_positive and alone)', 'push.reduce == "max" and not alone',
    ),
    # backends/c
    _slip(
        "C leaves out the last element of a coarse sum", "test_c.py hard_inputs test_shipped test_chains",
        "for (int64_t k = 0; k < others; k++)", "for (int64_t k = 0; k + 1 < others; k++)",
    ),
    _slip(
        "C rounds ties of bfloat16 away from 0", "c_math",
        "h = (i + 0x7fff + (i >> 16 & 1)) >> 16", "h = (i + 0x8000) >> 16",
    ),
    _slip(
        "C fills gaps between segments that are out of order", "backends/test_layouts",
        "if (WHOLE_##S && COUNTED_##S)", "if (WHOLE_##S)",
    ),
    _slip(
        "the upper neighbour of a quantile may lie beyond the bound", "backends*quantiles",
        "} else if (k + next >= below + kept) {", "} else if (k >= below + kept) {",
    ),
    # backends/triton
    _slip(
        "Triton's blocks arrive without a release", "test_ptx",
        'tl.atomic_add(counter, 1, sem="acq_rel")', 'tl.atomic_add(counter, 1, sem="relaxed")',
    ),
    _slip(
        "Triton sums what lies beyond a row", "triton test_shipped test_chains",
        '"tl.where(m, {}, 0.0)" if masked else "{}"', '"{}"',
    ),
    _slip(
        "kept launches do not tell addresses by their alignment", "backends/test_launches",
        "aligned = tuple([address % ALIGNED for address in addresses])", "aligned = (True,)",
    ),
    # backends/jax
    _slip(
        "JAX: masked tokens are added up", "backends/test_jax",
        "    x = jnp.where(f.present, x, nothing)\n    if f.grid",
        "    x = jnp.broadcast_to(x, f.parent.shape)\n    if f.grid",
    ),
    # fibration/runtime
    _slip(
        "the channels of a pair are exchanged", "runtime/test_parameters",
        "value, what = value[CHANNELS.index(channel)]", "value, what = value[1 - CHANNELS.index(channel)]",
    ),
    _slip(
        "numbers by label are not checked", "runtime/test_parameters",
        " and not parameter.is_outside(np.array(found)).any():", ":",
    ),
    _slip(
        "a gradient that another pass needs is handed out", "test_backward",
        "return known.to(dtype, copy=_graph_is_kept())", "return known.to(dtype)",
    ),
    _slip(
        "an incoming gradient is taken for 1", "test_backward",
        "if devices.can_sync(times.device) and times.item() == 1.0:", "if devices.can_sync(times.device):",
    ),
    _slip(
        "a second call does not look at dtypes", "runtime/test_prepared",
        "tensor.dtype is not dtype or tensor.shape != shape", "tensor.shape != shape",
    ),
    _slip(
        "metrics of micro-batches are averaged", "metrics",
        "return Mean(self.sum + other.sum, self.count + other.count)",
        "return Mean(self.sum / self.count + other.sum / other.count, torch.tensor(2.0))",
    ),
    _slip(
        "frozen sums of the first call stay", "runtime/test_prepared",
        'if program == "micro" or devices.is_recording()', "if devices.is_recording()",
    ),
    _slip(
        "masked tokens count in the batch", "hard_inputs test_operator metrics",
        "torch.full((1,), self.size[of], dtype=torch.float64, device=self.device)",
        "torch.full((1,), int(np.prod(self.shape)) if of in self.leaves else self.size[of], dtype=torch.float64)",
    ),
    _slip(
        "a micro-batch has counts of its own", "runtime/test_micro",
        "return self.taken(self.whole.count(of, over), over)", "return super().count(of, over)",
    ),
    _slip(
        "positions may stay the same along a row", "test_positions",
        "falls = mine[1:] <= mine[:-1]", "falls = mine[1:] < mine[:-1]",
    ),
    _slip(
        "a rank's gradient is scaled as that of one process", "ranks/test_training",
        "return self.group.size if self.group else 1", "return 1",
    ),
    _slip(
        "a rank that fails leaves the others waiting", "test_collect test_calls",
        "for stage in stages[len(self._met) :]:", "for stage in stages[:0]:",
    ),
    _slip(
        "1 and '1' are one label", "ranks/test_labels",
        'str: lambda value: b"s" + value', 'str: lambda value: b"n" + value',
    ),
    # fibration/auditing
    _slip(
        "max in place of min is not seen", "auditing/test_planted",
        'if {*found} == {"inward"}:\n            text = f"with A', 'if not found:\n            text = f"with A',
    ),
    _slip(
        "a place under the mask may get a gradient", "auditing/test_planted",
        "or (found.is_finite and bool((found.outside != 0).any()))", "",
    ),
    _slip(
        "a loss that divides by one token too many is a mean", "auditing/test_planted",
        "np.ptp(each) <= close * abs(each[0]):", "np.ptp(each) <= abs(each[0]):",
    ),
    # fibration/head
    _slip(
        "the entropy's gradient lacks the entropy", "head/test_loss",
        "return (self.entropy - self.total.log()).mul_(bonus).add_(coefficients)",
        "return self.total.log().neg().mul_(bonus).add_(coefficients)",
    ),
    # fibration/configs
    _slip(
        "cispo reads its bound as a distance from 1", "configs/test_trl.py",
        "d.gates = {token: Gate(minimum(residual, ceiling - 1))}", "d.gates = {token: Gate(minimum(residual, ceiling))}",
    ),
    _slip(
        "an option that nobody knows is ignored", "configs/test_options.py",
        "            if table.find(name) is None:", "            if name is None:",
    ),
    # fibration/trainers
    _slip(
        "a loss of half the scale passes", "trainers/test_scale",
        "if not (abs(low - 1) <= one.bound and abs(high - 1) <= one.bound):",
        "if not (abs(high - low) <= one.bound):",
    ),
    _slip(
        "a token that is left out passes", "trainers/test_scale",
        "if not (abs(low - 1) <= one.bound and abs(high - 1) <= one.bound):",
        "if not abs(high - 1) <= one.bound:",
    ),
    _slip(
        "every rank has the coefficients of its own rows", "trainers/test_window",
        "spread: dict[str, Any] = {} if self.ranks is None else {GROUP: self.ranks}",
        "spread: dict[str, Any] = {}",
    ),
    _slip(
        "coefficients of a set are those of passes before", "trainers/test_micro_batches",
        "first = self._keep_first(rows, now)", "first = self._keep_first(rows[:0], now[:0])",
    ),
    # fibration/cache.py
    _slip(
        "what is kept is run, whoever wrote it", "test_cache",
        "        for doubt in filter(None, (_doubt(part, info) for part, info in parts.items())):\n",
        "        for doubt in ():\n",
    ),
)  # fmt: skip
