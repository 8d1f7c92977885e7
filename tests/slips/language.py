"""Slips in `fibration/language`."""

from slips.slip import slip

SLIPS = (
    slip(
        "at x = 0 a token is in both sign channels", "gradients shipped first_order",
        '"-": where(x >= 0, 0, -(s * x))', '"-": where(x > 0, 0, -(s * x))',
    ),
    slip(
        "at x = 0 a token is in no sign channel", "gradients shipped first_order",
        '{"+": where(x >= 0, s * x, 0)', '{"+": where(x > 0, s * x, 0)',
    ),
    slip(
        "the budget itself is rolled back", "gradients",
        "where(drift <= budget, residual,", "where(drift < budget, residual,",
    ),
    slip(
        "the end of the rollback still has its slope", "gradients",
        "where(drift < (1 + 1 / rollback) * budget", "where(drift <= (1 + 1 / rollback) * budget",
    ),
    slip(
        "a clip is flat at its upper bound", "gradients test_expressions",
        "where(a > high, high, a))", "where(a >= high, high, a))",
    ),
    slip(
        "PPO clips the ratio before the minimum with the advantage", "vectors gradients",
        '''_distances("pessimistic_clip_gate", low=low, high=high)
    return Gate(where(advantage >= 0, minimum(residual, high), maximum(residual, -low)))''',
        '''_distances("pessimistic_clip_gate", low=low, high=high)
    return Gate(clip(residual, -low, high))''',
    ),
    slip(
        "an inward gate acts whichever way it is pulled", "test_inward",
        "outward = ((by > 0) & (residual > 0)) | ((by < 0) & (residual < 0))", "outward = (by > 0) | (by < 0)",
    ),
    slip(
        "an inward gate regards no residual below 0", "test_inward",
        "outward = ((by > 0) & (residual > 0)) | ((by < 0) & (residual < 0))", "outward = (by > 0) & (residual > 0)",
    ),
    slip(
        "a gate on the channel below is pulled as the one above", "test_inward",
        "            return channel_sign * advantage\n", "            return advantage + 0 * channel_sign\n",
    ),
    slip(
        "groups are pulled by the plain mean of advantages", "runtime/test_inward",
        "        return channel_sign * total(term, over=stratum)\n",
        "        return channel_sign * total(advantage + 0 * term, over=stratum)\n",
    ),
    slip(
        "what an inward gate lets pass is never cut", "test_inward",
        "passed = residual if ceiling is None else clip(", "passed = residual if True else clip(",
    ),
    slip(
        "0 - x is cancelled to x", "test_cancel",
        "left if d == 0 else cancel(-right)", "left if d == 0 else cancel(right)",
    ),
    slip(
        "what is constant on a fibre loses its coefficient", "test_cancel",
        "return _join(Fraction(1), inside), _join(coefficient, outside)",
        "return _join(Fraction(1), inside), _join(Fraction(1), outside)",
    ),
    slip(
        "the recovery multiplies by the scale", "laws*right test_expressions vectors",
        'exp((gated("+") - gated("-")) / s)', 'exp((gated("+") - gated("-")) * s)',
    ),
    slip(
        "trajectory_mean counts the tokens of the batch", "vectors laws*objective",
        "return Objective(weight=1 / (count(ROWS, over=WHOLE) * count(LEAF, over=ROWS)))",
        "return Objective(weight=1 / (count(ROWS, over=WHOLE) * count(LEAF, over=WHOLE)))",
    ),
    slip(
        "token_mean counts the tokens of the row", "vectors laws*objective",
        "return Objective(weight=1 / count(LEAF, over=WHOLE))", "return Objective(weight=1 / count(LEAF, over=ROWS))",
    ),
    slip(
        "the Möbius numbers have the wrong sign", "test_strata laws*orthogonality test_quivers",
        "found[s] = 1 - sum(c for u, c in found.items()", "found[s] = 1 + sum(c for u, c in found.items()",
    ),
    slip(
        "what is kept is printed without its normaliser", "test_token_formulas",
        """said = "" if normaliser == "all" else f', normaliser="{normaliser}"'""", 'said = ""',
    ),
    slip(
        "of several weights the last one counts", "test_token_formulas",
        '"weighed": (*self.weighed, value)', '"weighed": (value,)',
    ),
    slip(
        "the gates of the two channels are swapped", "test_token_formulas",
        "where(channel_sign > 0, plus.expression, minus.expression)", "where(channel_sign > 0, minus.expression, plus.expression)",
    ),
    slip(
        "the sign of every channel is 1", "test_token_formulas",
        'return as_expression(-1 if channel == "-" else 1)', "return as_expression(1)",
    ),
    slip(
        "formulas in statistics keep their parameters", "test_token_formulas",
        "formula=rewritten(atom.formula, change), level=level", "formula=change(atom.formula), level=level",
    ),
    slip(
        "formulas in statistics of statistics are not reached", "test_token_formulas",
        "yield from within(atom.formula)", "yield atom.formula",
    ),
    slip(
        "JSON leaves out strata that formulas alone name", "test_token_formulas",
        "words = (*self._places(), *named(self._expressions()))", "words = (*self._places(),)",
    ),
    slip(
        "a parameter of a weight has the values of a level", "test_token_formulas",
        "own = [h.objective.weight, *h.objective.formulas, h.decomposition.recovery, h.decomposition.scale]",
        "own = [h.objective.weight, h.decomposition.recovery, h.decomposition.scale]",
    ),
    slip(
        "a parameter of a statistic in a gate has the values of its level", "test_token_formulas",
        "for formula in (*(formula for e in own for formula in within(e)), *inside):",
        "for formula in (formula for e in own for formula in within(e)):",
    ),
    slip(
        "what is stopped moves", "test_token_formulas",
        "if formula.operator == STOP or formula.is_condition:", "if formula.is_condition:",
    ),
    slip(
        "what pulls forgets the weights of tokens", "test_token_formulas",
        "term = weight * term", "term = 1 * term",
    ),
    slip(
        "what has nothing left to stop is stopped", "test_token_formulas",
        "if e.operator == STOP and not (", "if not e.operator and not (",
    ),
    slip(
        "formulas remember the hashes of another process", "test_immutable",
        "def __reduce__(self) -> tuple[Any, ...]:  # hashes of text", "def reduced(self) -> tuple[Any, ...]:  # hashes of text",
    ),
    slip(
        "a penalty may be a statistic of advantages", "language/test_terms",
        "return not formula.is_condition and _is_number_of_advantages(desugar(formula.formula))", "return False",
    ),
    slip(
        "of= and over= may be swapped", "language/test_terms",
        "if over is None or over in self.shape.coarser(of):", "if over is None or over in self.shape.strata:",
    ),
    slip(
        "what is held in a penalty passes gradients", "language/test_terms",
        'SUMS = ORDER | {"total", "mean"}', 'SUMS = ORDER | {"total", "mean", "largest", "deviation"}',
    ),
    slip(
        "a mean in a penalty passes no gradients", "language/test_terms",
        'SUMS = ORDER | {"total", "mean"}', 'SUMS = ORDER | {"total"}',
    ),
    slip(
        "rewards stand in weights", "language/test_terms",
        'if atom == reward and role != "advantages":', 'if atom == reward and role == "level":',
    ),
    slip(
        "a mean of all others leaves out what is not there", "language/test_terms laws*locality",
        "if not atom.others or atom.of in places:", "if atom.kind:",
    ),
    slip(
        "JSON leaves out strata of penalties", "language/test_terms",
        "yield from (p.over for p in self.penalties.values() if p.over is not None)", "yield from ()",
    ),
    slip(
        "the domain of sqrt is forgotten",
        "test_operators laws*markov laws*recovery laws*identity laws/test_random laws*first_order laws*right laws*wrong",
        "domain=lambda x: ((x, NOT_NEGATIVE),),", "domain=everywhere,",
    ),
    slip(
        "the domain of log1p is that of log",
        "test_operators laws*markov laws*recovery laws*identity laws/test_random laws*first_order laws*right laws*wrong",
        "domain=lambda x: ((1 + x, POSITIVE),)", "domain=lambda x: ((x, POSITIVE),)",
    ),
    slip(
        "exp is taken to be exact",
        "test_operators laws*right laws*identity laws*positivity laws*recovery laws*wrong laws/test_random",
        'exact.transcendental("exp"), rounded=True', 'exact.transcendental("exp"), rounded=False',
    ),
    slip(
        "one polynomial beside another may have a term more", "test_polynomials",
        "if not p.terms.keys() ^ q.terms.keys() <= {ONE}:", "if not p.terms.keys() - q.terms.keys() <= {ONE}:",
    ),
    slip(
        "terms are added without what they share", "test_polynomials laws/test_signs",
        "return Quotient(Fraction(1, scale), shared) * as_quotient", "return Quotient(Fraction(1, scale), {}) * as_quotient",
    ),
    slip(
        "counterexamples have attributes outside their ranges", "laws/test_small_batches",
        "return value if high is None else min(value, high)", "return value",
    ),
    slip(
        "attributes above their ranges are taken", "runtime/test_bad_index",
        "return outside if self.upper is None else outside | (value > self.upper)", "return outside",
    ),
    slip(
        "a value of too many digits is a missing one", "laws*timeout test_expressions",
        "class TooLarge(ArithmeticError)", "class TooLarge(NoValue)",
    ),
    slip(
        "exact values have as many digits as there are", "test_expressions",
        "return bounded(row.exact(*arguments))", "return row.exact(*arguments)",
    ),
    slip(
        "a count that names no place in an objective stays without one", "laws*objective",
        "            if place is None:\n                return rows\n", "            if place is None:\n                return None\n",
    ),
    slip(
        "a formula for a parameter is compared where the parameter cannot be that", "laws*equivalent",
        "ranges += [formula > as_expression(p.lower)] if", "ranges += [] if",
    ),
    slip(
        "a strict comparison of limits holds at a tie", "language*limits",
        "one.value > other.value:", "one.value >= other.value:",
    ),
    slip(
        "digits are mpmath's own", "laws*timeout",
        "digits = _DIGITS.context", "digits = mpmath.mp",
    ),
    slip(
        "a law that is given up covers what follows from it", "laws/test_verify",
        "failing = {(v.law, v.subject): v for v in self.failures}",
        'failing = {(v.law, v.subject): v for v in self.verdicts if v.status != "proved"}',
    ),
    slip(
        "an error is raised for what follows before its cause", "laws/test_verify",
        "raise self.error(min(self.causes, key=lambda", "raise self.error(min(self.failures, key=lambda",
    ),
    slip(
        "a part of the batch has its share by way of any leaf", "laws/test_reflecting language/test_strata",
        "last = next(f for f in cover if leaf in self.leaves_over(f.source))", "last = cover[0]",
    ),
    slip(
        "the slope of a quotient has the wrong sign", "gradients test_adjoint",
        "slopes=lambda a, b, y: (1 / b, -(y / b))", "slopes=lambda a, b, y: (1 / b, y / b)",
    ),
    slip(
        "the slope of log1p is that of log", "gradients test_adjoint",
        "slopes=lambda x, y: (1 / (1 + x),)", "slopes=lambda x, y: (1 / (x),)",
    ),
    slip(
        "a parameter may lie on its bound", "test_parameters",
        "return (value <= low) | (value >= high) | (value != value)", "return (value < low) | (value >= high) | (value != value)",
    ),
    slip(
        "a number of few bits is the binary that it is", "test_declarations",
        "value = float(str(value))  # numpy's", "value = float(value)  # numpy's",
    ),
    slip(
        "numpy's numbers on the left change sides", "test_declarations",
        "            return apply(sign, *args)\n", "            return apply(sign, *args[::-1])\n",
    ),
    slip(
        "a spec that is imported ends the process", "test_apart",
        "        if (os.getpid(), get_ident()) in here:\n", "        if () in here:\n",
    ),
    slip(
        "what a spec forks does not end", "test_apart",
        "        if (os.getpid(), get_ident()) in here:\n", "        if here:\n",
    ),
    slip(
        "a group of one that is compared already is refused", "test_bad_rewards",
        "_others(e for e in self._expressions() if e is not self.advantages)", "_others(self._expressions())",
    ),
    slip(
        "a folder's specs are those of its first level", "test_loading",
        "yield from () if path.is_symlink() else _below(path)", "yield from ()",
    ),
    slip(
        "links to folders are followed when specs are looked for", "test_loading",
        "yield from () if path.is_symlink() else _below(path)", "yield from _below(path)",
    ),
    slip(
        "a penalty is weighed as the objective is",
        "test_penalties",
        "made = Objective(self.weight)\n",
        "made = Objective(self.weight, weighed=self.weighed)\n",
    ),
    slip(
        "a penalty is of those tokens alone that the objective keeps",
        "test_penalties",
        'made = made.keep(keep.condition, "kept") if keep.normaliser == "kept" else made',
        "made = made.keep(keep.condition, keep.normaliser)",
    ),
    slip(
        "penalties are of tokens that the loss does not count", "laws/test_statistics_of_samples",
        "made = made.keep(keep.condition, \"kept\") if keep.normaliser == \"kept\" else made", "pass",
    ),
)  # fmt: skip
