"""Slips in proofs."""

from slips.slip import slip

SLIPS = (
    slip(
        "a ratio that falls with a density reverses no token", "test_reversal",
        "        -1 not in recovery_slopes(subject, channel)\n        and _rises(density(channel))\n", "        _rises(density(channel))\n",
    ),
    slip(
        "a density that falls with the log ratio reverses no token", "test_reversal",
        "        and _rises(density(channel))\n", "",
    ),
    slip(
        "below a level that passes anything, another one may pass anything", "test_reversal",
        "return _rises(table[root, channel]) and all(_has_slope(0, table[s, channel]) for s in others)",
        "return _rises(table[root, channel])",
    ),
    slip(
        "a level of several rows has one advantage", "test_reversal",
        "if root not in (h.rows, *whole_batch(h).finer(h.rows)) or any(atoms(e, *_OF_OTHERS) for e in read):",
        "if any(atoms(e, *_OF_OTHERS) for e in read):",
    ),
    slip(
        "a bound that says low is matched with one that says high", "laws*by_role",
        "overlap and not contradict(one.name, other.name)", "overlap",
    ),
    slip(
        "a match that is not unique is made all the same", "laws*by_role",
        "if len(equal) == 1 and len(options) <= MOST:", "if not equal:\n        return found.under(options[0])\n    if len(equal) == 1:",
    ),
    slip(
        "all losses are at the defaults of the first", "laws*by_role",
        "one, other = (with_defaults(h, said) for h in (one, other))",
        "one, other = (with_defaults(h, said) for h in (one, one))",
    ),
    slip(
        "a proof makes as many comparisons as it likes", "laws*neighbours",
        "        if left[0] < 0:\n            raise TooManyCases", "        if not left:\n            raise TooManyCases",
    ),
    slip(
        "any added weight is the ratio", "laws*neighbours",
        "if len(new) == 1 and not lost and _has_ratio(c.shipped):", "if len(new) == 1 and not lost:\n        return 'with the ratio twice'\n    if new:",
    ),
    slip(
        "parts are the same if no small batch tells them apart", "laws*neighbours",
        "return isinstance(same_loss(both), Proved)", "return True",
    ),
    slip(
        "the law of inward gates forgets which way a channel moves the ratio", "laws/test_inward",
        "assume.with_signs({base: frozenset({p * up})}) for p in WAYS}",
        "assume.with_signs({base: frozenset({p})}) for p in WAYS}",
    ),
    slip(
        "a pull back may be turned round", "laws/test_inward",
        "if but != TURNED and any(_turns(b, known[-side]) for b in inward):", "if but != TURNED and not inward:",
    ),
    slip(
        "a gate may open again beyond its budget", "laws/test_inward",
        "if b.signs & STOPS and c.signs & PASSES]", "if b.signs & PASSES and not c.signs]",
    ),
    slip(
        "a clip on the wrong side of the advantage is none", "laws/test_inward",
        "stopped = [b for b in inward if b.signs & STOPS] if asks", "stopped = [b for b in inward if b.signs & {2}] if asks",
    ),
    slip(
        "a pull passes by the slope of the value, whatever is stopped", "laws/test_inward",
        "slope = _without_kinks(case.slope(RHO), inside)", "slope = _without_kinks(sympy.diff(case.sympy(), RHO), inside)",
    ),
    slip(
        "a gate that reads a density is followed with that density held alone", "laws/test_inward",
        "(ray,), certain, inside)", "(), certain, inside)",
    ),
    slip(
        "means of elements that there may be none of are proved", "laws/test_objective",
        "return atom if number is None else atom / number * number", "return atom",
    ),
    slip(
        "what may be 0 has one sign too few",
        "laws*markov laws*reflecting laws*identity laws*recovery laws/test_random laws*quiver populations",
        "return possible - ZERO if any(0 not in s for s in parts) else possible | ZERO", "return possible - ZERO",
    ),
    slip(
        "the sign of a denominator is forgotten", "laws*markov laws*reflecting laws*identity laws/test_random",
        "found = multiplied(found, raised(factor(f), p))", "found = multiplied(found, raised(factor(f), max(p, 0)))",
    ),
    slip(
        "a bound that may be reached is not", "laws/test_signs populations",
        "ends = ([] if within.open else [parts[0]]) + ([parts[-1]] if within.closed else [])",
        "ends = [parts[-1]] if within.closed else []",
    ),
    slip(
        "a condition says that its own denominator is not 0", "laws/test_signs laws*markov",
        "(power := next(iter(rest.factors.values()))) > 0:", "(power := next(iter(rest.factors.values()))):",
    ),
    slip(
        "what is divided by may be 0", "laws/test_signs laws*markov",
        "    if power < 0 and 0 in signs:\n        return ANY\n", "",
    ),
    slip(
        "what is dropped from a comparison keeps its sign", "laws/test_signs",
        "            if own == NEGATIVE:\n                sign = -sign\n            elif own != POSITIVE:",
        "            if own not in (NEGATIVE, POSITIVE):",
    ),
    slip(
        "a sum of what may be 0 never is", "laws/test_signs",
        "return found - ZERO if len(found) > 1 and self._not_all_0(p) else found", "return found - ZERO",
    ),
    slip(
        "a turned difference keeps its signs", "laws*right laws*markov laws*reflecting laws/test_random",
        "        sign, difference = -sign, -difference", "        difference = -difference",
    ),
    slip(
        "a case that may be undefined is defined",
        "laws*markov laws*reflecting laws*recovery laws*identity laws/test_random",
        "return all(smooth_signs.signs(n.value, inside) <= n.signs for n in (self.needs if needs is None else needs))",
        "return all(inside.signs(n.value) & n.signs for n in (self.needs if needs is None else needs))",
    ),
    slip(
        "too many cases count as proved",
        "too_many laws*markov laws*reflecting laws*identity laws*first_order laws/test_random",
        "branches = cases(self.formula, self.assume)\n        except TooManyCases:\n            return False",
        "branches = cases(self.formula, self.assume)\n        except TooManyCases:\n            return True",
    ),
    slip(
        "a claim needs no value", "laws*markov laws*reflecting laws*objective laws*first_order laws/test_random",
        "return all(case.defined(self.assume) and self._has_sign(case) for case in branches)",
        "return all(self._has_sign(case) for case in branches)",
    ),
    slip(
        "what the finest level takes away is forgotten", "laws*joint_terms laws*positivity",
        "sums = [1 + sum(chosen) for chosen", "sums = [1 + sum(chosen[:-1]) for chosen",
    ),
    slip(
        "a sum that falls with a mean counts as positive", "laws*joint_terms laws*positivity",
        "if any(slope.is_negative for slope in left):\n                continue",
        "if all(slope.is_negative for slope in left):\n                return True",
    ),
    slip(
        "a hyperbolic tangent is that of half its argument", "laws*recovery laws*joint_terms",
        "1 - 2 / (1 + sympy.exp(2 * a))", "1 - 2 / (1 + sympy.exp(a))",
    ),
    slip(
        "differences of a polynomial are its slope", "laws/test_one_variable",
        "        row = [a + b for a, b in zip([0, *row], [*row, 0], strict=True)]",
        "        row = [0, *row] if not any(row[1:]) else [*row, 0]",
    ),
    slip(
        "a polynomial that touches 0 does not", "laws/test_one_variable laws/test_polynomial_signs",
        "found |= ZERO if power % 2 == 0 else frozenset({0, -end})", "found |= frozenset() if power % 2 == 0 else frozenset({0, -end})",
    ),
    slip(
        "what has an even root changes its sign nowhere, nor does any other", "laws/test_one_variable laws/test_polynomial_signs",
        "found |= ZERO if power % 2 == 0 else frozenset({0, -end})", "found |= ZERO",
    ),
    slip(
        "a square may be 0 and is not", "laws/test_polynomial_signs laws*joint_terms",
        "return lead if room == POSITIVE else lead | ZERO if room <= NOT_NEGATIVE else ANY",
        "return lead if room <= NOT_NEGATIVE else ANY",
    ),
    slip(
        "a root pulls as its factor, whatever is beside it", "laws/test_polynomial_signs laws*joint_terms",
        "return frozenset(side * s for s in more) if own <= against else ANY", "return frozenset(side * s for s in more)",
    ),
    slip(
        "attributes do not reach their upper bounds", "laws/test_polynomial_signs laws*joint_terms",
        "return replace(between(low, high, open=above_0), closed=low is not None and high is not None)",
        "return between(low, high, open=above_0)",
    ),
    slip(
        "totals are bounded like one element", "laws/test_polynomial_signs",
        "(variable(count) * constant(b.numerator), b.denominator)", "(constant(b.numerator), b.denominator)",
    ),
    slip(
        "differences of counts may be any number", "laws/test_polynomial_signs laws*joint_terms",
        "whole = within.upper is None and isinstance(ATOM_OF.get(atom_expression(atom)), Count)", "whole = False",
    ),
    slip(
        "everything is a whole number", "laws/test_polynomial_signs laws*joint_terms",
        "whole = within.upper is None and isinstance(ATOM_OF.get(atom_expression(atom)), Count)", "whole = True",
    ),
    slip(
        "what is declared at r = 1 is not asked where the law of recovery holds", "laws*gradient laws*first_order",
        '(0,) if subject.proved("recovery") and not stopped else SIDES', '() if subject.proved("recovery") else SIDES',
    ),
    slip(
        "gates are not looked at below 0", "laws*identity laws*first_order laws/test_random",
        "SIDES = (-1, 0, 1)", "SIDES = (0, 1)",
    ),
    slip(
        "a branch that may be empty counts as filled",
        "laws*markov laws*reflecting laws*quiver laws*objective laws/test_random populations",
        "for t in self.coarser[s] if self.leaves[t] <= self.leaves[s]}",
        "for t in self.coarser[s] if self.leaves[t] & self.leaves[s]}",
    ),
    slip(
        "a claim holds if it does on one branch",
        "laws*markov laws*reflecting laws*identity laws*quiver laws/test_random",
        "return all(case.defined(self.assume) and self._has_sign(case) for case in branches)",
        "return any(case.defined(self.assume) and self._has_sign(case) for case in branches)",
    ),
    slip(
        "a sum of squares is summed like one of measures", "laws*markov laws*reflecting laws/test_random",
        "    if polynomial.total_degree() > 1:\n", "    if polynomial.total_degree() > 2:\n",
    ),
    slip(
        "a mean of x over tokens of all signs is one variable with that over x > 0", "laws*equivalent",
        "for side in (0,) if self.variables.on_policy else SIDES:", "for side in (0,) if self.variables.on_policy else (1,):",
    ),
    slip(
        "a condition loses the sign of its number", "laws/test_feasible laws*equivalent",
        "sympy.Integer(1), 1 if number > 0 else -1", "sympy.Integer(1), 1",
    ),
    slip(
        "conditions that no batch meets prove everything", "laws*equivalent",
        "if not left or _can_hold(pair):", "if left or _can_hold(pair):",
    ),
    slip(
        "a proof needs no batch that meets the conditions", "laws*equivalent",
        "if not has_batches(pair):", "if not pair.first.leaves:",
    ),
    slip(
        "counts are any numbers", "laws*equivalent",
        "return _has_whole_numbers(conditions, assume) and not _contradict(rows)", "return not _contradict(rows)",
    ),
    slip(
        "the weights of two objectives are not compared", "laws*equivalent",
        "weights = all(self._weights_agree(*place) for place in self.places)", "weights = bool(self.places)",
    ),
    slip(
        "a branch is compared by its value alone", "laws*equivalent",
        "if not (identical(mine, yours) and alike(a, b, known, assume, by_value)) and",
        "if not alike(a, b, known, assume, by_value) and",
    ),
    slip(
        "a root of 0 has a slope", "laws*equivalent_rare_branches",
        "needs = case.needs if by_value else case.needs_of_slopes(may_move)", "needs = case.needs",
    ),
    slip(
        "what cancels always had a value", "laws*equivalent_rare_branches",
        "return frozenset(a for e in formulas for a in atoms(e) if a in self.partial)", "return frozenset()",
    ),
    slip(
        "of kept tokens no branch is empty", "laws*equivalent_rare_branches",
        "if isinstance(a, Count) and leaf in self.variables.pair.shape.leaves_over(a.of):", "if isinstance(a, Count):",
    ),
    slip(
        "what is the same at a tie is taken to have the same slope there", "laws*equivalent",
        "at_ties(e.sympy(), known) if by_value else e.held() for", "at_ties(e.sympy(), known) for",
    ),
    slip(
        "statistics of tokens are differentiated", "laws*equivalent_weights",
        "return found if flows else stop(found)", "return found",
    ),
    slip(
        "tokens that are not kept are counted with the others", "laws*equivalent_weights",
        'counted = [k.condition for k in objective.kept if k.normaliser == "kept"]', "counted = []",
    ),
    slip(
        "weights and conditions are no part of a loss", "laws*equivalent",
        "Counter(objective.weighed), Counter(objective.kept), h.rows", "h.rows",
    ),
    slip(
        "a mean and what is largest are one variable", "laws*equivalent_weights",
        'if kind not in ("total", "mean"):', 'if kind == "quantile":',
    ),
    slip(
        "a frozen policy that is the same as the current one is moved with it", "laws*equivalent_weights",
        "return old + stop(token_log_ratio)", "return old + token_log_ratio",
    ),
    slip(
        "where all policies are the same the current one has no slope", "laws*equivalent_rare_branches",
        "if not policy.is_frozen:\n            return old + token_log_ratio",
        "if not policy.is_frozen and not self.on_policy:\n            return old + token_log_ratio",
    ),
    slip(
        "a coefficient forgets the means that a token moves", "laws*equivalent",
        "            if z not in self.folded:\n                found[z] = slope",
        "            if z not in self.folded:\n                found[z] = 0 * slope",
    ),
    slip(
        "penalties are no part of a loss", "laws*equivalent_terms",
        "if has_same_penalties(self.pair):", "if not has_same_penalties(self.pair) or self.places:",
    ),
    slip(
        "a penalty has the weights of the loss", "laws*equivalent_terms",
        "formulas.weight(h, leaf, p.objective or h.objective.of_penalties)", "formulas.weight(h, leaf, p.objective or h.objective)",
    ),
    slip(
        "a penalty is held", "laws*equivalent_terms",
        "return formulas.read(at(p.formula, p.over or leaf), leaf, SUMS)",
        "return formulas.read(at(p.formula, p.over or leaf), leaf)",
    ),
    slip(
        "advantages from rewards are all the same", "laws*equivalent_terms",
        "if first is None or second is None or first == second:", "if first is None or second is None or first != 1:",
    ),
    slip(
        "a mean of rows is one of tokens", "laws*equivalent_terms",
        'if atom.of is not None and atom.kind in ("total", "mean"):', 'if atom.others and atom.kind in ("total", "mean"):',
    ),
    slip(
        "the others' mean is that of all", "laws*equivalent_terms",
        "return (found - formula) / (n - 1) if atom.others else found / n", "return found / n",
    ),
    slip(
        "a deviation of what is alike is that", "laws*equivalent_terms",
        'none if kind == "deviation" else first', "first",
    ),
    slip(
        "a deviation moves with what all have", "laws*equivalent_terms",
        'if kind == "deviation" and len(formulas) == 1:', 'if kind == "some":',
    ),
    slip(
        "a deviation of rows is one of tokens", "laws*equivalent_terms",
        'of = of if kind == "deviation" else None', "of = None",
    ),
    slip(
        "before and after are one variable", "laws*equivalent_terms",
        "key = Gathered(o.direction, place, discount,", 'key = Gathered("before", place, discount,',
    ),
    slip(
        "discounts are no part of an order", "laws*equivalent_terms",
        "key = Gathered(o.direction, place, discount,", "key = Gathered(o.direction, place, None,",
    ),
    slip(
        "a coefficient forgets what it moves in order", "laws*equivalent_terms",
        "known = {symbol(n): m for n, m in (*means.items(), *((r, g) for g, r in formulas.gathered_as.items()))}",
        "known = {symbol(n): m for n, m in means.items()}",
    ),
    slip(
        "rewards are a token's own where rows have them", "laws*equivalent_terms",
        "return self.pair.has_rewards_of_rows and self.pair.first.rows in below", "return False",
    ),
    slip(
        "a level subtracts nothing of other rows, whatever it lies over", "laws*facts_levels",
        "return of_one_row and is_whole and sum(means.values()) == 1", "return of_one_row or True",
    ),
    slip(
        "a branch of a tree is all of what it lies over", "laws*facts_levels",
        "return of_one_row and is_whole and sum(means.values()) == 1", "return of_one_row and sum(means.values()) == 1",
    ),
    slip(
        "a bound that chooses by size is the smallest of its branches", "laws*facts_radius",
        "if not (read := Counter(d for conditions in known for d in conditions)):", "if True or (read := Counter()):",
    ),
    slip(
        "means that count for a residual are forgotten in its reach", "test_radius_of_crossings laws*facts",
        "added = 1 + sum(-c for c in factors if c < 0)", "added = 1",
    ),
    slip(
        "what tokens of other elements add is bounded by one's own counts", "amplification",
        "if not isinstance(place, Stratum) or place in (u, *self.h.coarser(u)) or place == Stratum(BATCH):", "if True:",
    ),
    slip(
        "a pull is the same whatever the objective weighs", "amplification",
        "if u == leaf or (read <= fixed and all(vanishes(own - s) for s in shares.values())):", "if True:",
    ),
    slip(
        "the slope of a level is bounded without the one above it", "amplification",
        "factors = {u: 1, **{v: -self.shape.moebius(v)[u] for v in between}}", "factors = {u: 1}",
    ),
    slip(
        "a gate that reads densities is taken to stand still", "amplification",
        "            if any(map(reads_batch, values)):", "            if any(reads_batch(v) for v in values[:0]):",
    ),
    slip(
        "advantages of both signs never share a coefficient", "amplification",
        "return all(self.read & {u, *self.h.coarser(u)} for u in coupled)", "return bool(coupled)",
    ),
    slip("formulas of any length are compared", "amplification", "MOST_NAMES = 20", "MOST_NAMES = 200"),
    slip(
        "at the far end of a slope a ratio is largest", "amplification",
        "_limit(self.value, self.high if way == 1 else self.low, assume)", "_limit(self.value, self.high, assume)",
    ),
    slip(
        "densities with the values of log ratios have their slopes", "test_reversal",
        " and vanishes(c.slope(X) - sympy.diff(e, X)) for c, e in beside)", " for c, e in beside)",
    ),
    slip(
        "F may turn an advantage round at r = 1", "test_gradient",
        "if any(s * way < 0 for s in signs for way in ways):", "if not signs:",
    ),
    slip(
        "what the gates of all levels add may fall", "test_gradient",
        "return all(-1 not in assume.signs(cancelled(sum(slopes[u] for u in full))) for full in _full(stack))", "return True",
    ),
    slip(
        "a total tends to what its formula does", "laws/test_agreement",
        "limit = limit * functools.reduce(operator.add, counts)", "pass",
    ),
    slip(
        "a statistic is nowhere below its limit", "laws/test_agreement",
        "found |= near.assume.with_signs(dict(case.signs)).signs(case.sympy() - limit)", "found = frozenset({0, 1})",
    ),
    slip(
        "the smaller of two inside a statistic is the larger", "laws/test_agreement",
        "chosen = min if isinstance(e, sympy.Min) else max", "chosen = max if isinstance(e, sympy.Min) else min",
    ),
    slip(
        "what rises from below 0 is above it", "laws/test_smooth_signs",
        "return (side,) if began * side >= 0 else", "return (side,) if began * side >= -1 else",
    ),
    slip(
        "what turns has the sign of its start", "laws/test_smooth_signs laws/test_inward",
        "if began * side < 0 and _turn(side * f) == -1 else None", "if began * side < 0 else None",
    ),
    slip(
        "policies other than the current one stay where they are", "laws/test_agreement",
        "if isinstance(atom, LogProb) and atom != REFERENCE:", "if isinstance(atom, LogProb) and not REFERENCE:",
    ),
    slip(
        "a slope that is stopped counts for the gradient", "laws/test_agreement",
        "return flowing(sympy.diff(to_sympy(self.value), variable))",
        "return sympy.diff(flowing(to_sympy(self.value)), variable)",
    ),
    slip(
        "every weight is at most a ratio", "laws/test_facts_weights",
        "return Claim(_on_kept(h, ratio - weight, leaf), known_at(h, leaf), NOT_NEGATIVE).is_shown",
        "return Claim(_on_kept(h, ratio - weight, leaf), known_at(h, leaf)).is_shown",
    ),
    slip(
        "a mask bounds no weight", "laws/test_facts_weights",
        "read, assume = _on_kept(h, weight, leaf), known_at(h, leaf)",
        "read, assume = at(weight, leaf), known_at(h, leaf)",
    ),
    slip(
        "a total of nothing is positive", "laws/test_branches_without_tokens",
        "return found | ZERO if of_none or found >= NOT_ZERO else found",
        "return found | ZERO if found >= NOT_ZERO else found",
    ),
    slip(
        "a statistic's formula is read where the statistic is", "laws/test_branches_without_tokens",
        "self.elsewhere(place).signs(to_sympy(formula)) for place, formula in read",
        "self.anywhere.signs(to_sympy(formula)) for place, formula in read",
    ),
    slip(
        "some of none holds where it holds of each", "laws/test_branches_without_tokens",
        "if known == {True} and self.assume.presence.may_be_of_none(statistic):", "if False:",
    ),
    slip(
        "what comes after a token is its prefix to the law causal", "laws/test_causal",
        'one: When = "earlier" if forward else "later"', 'one: When = "earlier"',
    ),
    slip(
        "how many tokens a row has is a token's own to the law causal", "laws/test_causal laws/test_statistics_of_samples",
        "return self._number(a.of, tokens) | values", "return values",
    ),
    slip(
        "a mean of others has the own row in it to the law causal", "laws/test_causal laws/test_statistics_of_samples",
        "if a.others and self.is_coarse(of) and not place.tokens & OTHERS:", "if False:",
    ),
    slip(
        "others of others are without the token itself", "laws/test_statistics_of_samples",
        "if a.others and self.is_coarse(of) and not place.tokens & OTHERS:", "if a.others and self.is_coarse(of):",
    ),
    slip(
        "what comes before a token was sampled before it, whatever is in it", "laws/test_statistics_of_samples",
        "            inside = self.ordered(a, place)\n            return self.of(a.formula, inside) | self._number",
        "            inside = self.ordered(a, place)\n            return _each(\"value\", inside.tokens) | self._number",
    ),
    slip(
        "rewards of rows are those of earlier tokens", "laws/test_statistics_of_samples",
        "place.tokens | ROW if whole and place.tokens & ROW else place.tokens", "place.tokens",
    ),
    slip(
        "a count at the rows is that at a token", "laws/test_statistics_of_samples",
        "over = place.of if a.over is None else a.over", "over = a.over",
    ),
    slip(
        "statistics of what varies are one number where policies coincide", "laws/test_statistics_of_samples",
        "return plain and all(on is None or on in below for on in given)", "return plain",
    ),
    slip(
        "off policy statistics are as they are on it", "laws/test_statistics_of_samples",
        "found = self._derivatives(free, self.assume) or []", "found = self._derivatives(self._at_rest(targets), self.assume) or []",
    ),
    slip(
        "a divergence to a policy that is taken to be old is one to another", "laws/test_statistics_of_samples",
        "if as_old and not self._only_weigh(as_old, targets, at_0):", "if False:",
    ),
    slip(
        "a condition of states tells tokens of one apart", "laws/test_statistics_of_samples",
        "for other in groups if _agree(state, other) for c", "for other in [state] for c",
    ),
    slip(
        "near the old policy one side is enough", "laws/test_statistics_of_samples",
        "self._at_rest((), near=True), self.assume, near=True)", "self._at_rest((), near=True), self.on_policy)",
    ),
    slip(
        "near the old policy statistics are as they are on it", "laws/test_statistics_of_samples",
        "resting = _as_old if near else _resting", "resting = _resting",
    ),
    slip(
        "what comes before an element of several rows ends before it begins", "laws/test_statistics_of_samples",
        "if not (of is None or self._is_in_row(of)):", "if False:",
    ),
    slip(
        "a divergence to a policy may be led away from", "laws/test_kl_gradient",
        "if any(not self._is_positive(k) for q, k in kappa.items() if q):", "if False:",
    ),
    slip(
        "what a token has a part in is of its state", "laws/test_kl_gradient",
        "if not alike or not all(self._is_of_state(v) for v in (*kappa.values(), rest)):",
        "if not alike or not all(self._is_of_state(v) for v in kappa.values()):",
    ),
    slip(
        "off policy a penalty's tokens are those of the current policy", "laws/test_kl_gradient",
        "sympy.expand(sympy.expand(c * sympy.exp(-X)), power_exp=True)", "sympy.expand(c)",
    ),
    slip(
        "a penalty's own weights are left out of its derivative", "laws/test_kl_gradient",
        "formula = stop(weight) * formula", "formula = stop(weight) * 0 + formula",
    ),
    slip(
        "the own reward is no part of its group's mean", "laws/test_baseline",
        "return replace(inside.times(share), rest=True)", "return Parts(rest=True)",
    ),
    slip(
        "how long a row becomes is given", "laws/test_baseline",
        "ahead = {what for when, what in read if when in AHEAD}", "ahead = {what for when, what in read if when in AHEAD and what != \"number\"}",
    ),
    slip(
        "later rewards may be discounted", "laws/test_baseline",
        "o.over == self.h.rows and (self.discounted or o.discount == ONE)", "o.over == self.h.rows",
    ),
    slip(
        "a factor of rewards may be 0", "laws/test_baseline",
        "if Claim(kappa, alone, NOT_NEGATIVE).is_shown and Claim(kappa, compared(h), POSITIVE).is_shown:",
        "if Claim(kappa, alone, NOT_NEGATIVE).is_shown:",
    ),
    slip(
        "how far along a row a token is, is given", "laws/test_baseline laws/test_statistics_of_samples",
        'return frozenset() if self.is_coarse(of) else _each("number", tokens - {"now"})',
        'return frozenset() if self.is_coarse(of) else _each("number", tokens - {"now", "earlier"})',
    ),
    slip(
        "a decomposition needs no slopes off policy", "laws/test_roots_of_0",
        "if self.held is None or not _have_slopes(self.subject):", "if self.held is None:",
    ),
    slip(
        "a gradient flows from what sympy leaves under a root alone", "laws/test_roots_of_0",
        "frozenset({*found.free_symbols, *_flowing_into(value)} if is_root else ())",
        "frozenset(found.free_symbols if is_root else ())",
    ),
    slip(
        "a root of 0 has a slope in penalties", "laws/test_kl_gradient",
        "if not case.defined(assume, case.needs_of_slopes(self._is_drawn)):", "if not case.defined(assume):",
    ),
    slip(
        "an advantage that is turned round is left", "laws/test_remainders",
        "return all(_is_not_below_0(case, known) for case in steps) or None", "return True",
    ),
    slip(
        "a penalty that leads away from its policy is left", "laws/test_remainders",
        "ways = [frozenset({0, 1})] if targets else", "ways = [frozenset({0, 1}), frozenset({-1, 0})] if targets else",
    ),
    slip(
        "what bends a reward is a baseline", "laws/test_baseline",
        "return None if any(p.has_reward for p in known) or (own and rest) else", "return None if own and rest else",
    ),
    slip(
        "what multiplies its own sample and others' is a baseline", "laws/test_baseline",
        "return None if any(p.has_reward for p in known) or (own and rest) else", "return None if any(p.has_reward for p in known) else",
    ),
    slip(
        "what comes before tends to anything", "laws/test_laws_of_order",
        "        if isinstance(atom, Ordered):\n            return self._ordered(atom)\n", "",
    ),
    slip(
        "a prefix in a decomposition is the identity to first order", "laws/test_laws_of_order",
        "return self.flows_alone and all(vanishes(v) for v in self.others)", "return self.flows_alone",
    ),
    slip(
        "densities of log ratios are above minus their mass too", "laws/test_inward",
        ' and coordinate(h, subject) == "deviation"):', "):",
    ),
    slip(
        "a bound for each channel is one bound", "laws/test_neighbours",
        """return Reading(f"parameter {a.name} on {a.on}, {'per channel' if a.per_channel else 'one'}")""",
        'return Reading(f"parameter {a.name}")',
    ),
)  # fmt: skip
