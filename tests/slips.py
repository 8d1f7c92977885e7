"""Slips of the kind that people make: for `mutations.py`. Each is one line of the library, or of a study, and what
it becomes.

A slip may have several texts, of which exactly one must be there. `likely` are patterns of the paths under `tests/` of the
files that should notice, in the order in which they are tried.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Slip:
    name: str
    texts: tuple[tuple[str, str], ...]
    likely: tuple[str, ...]


def slip(name: str, likely: str, *texts: str) -> Slip:
    """`texts`: old, new, old, new, ...; `likely`: patterns with spaces between."""
    return Slip(name, tuple(zip(texts[::2], texts[1::2], strict=True)), tuple(likely.split()))


LANGUAGE = (
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
        '''"""PPO's `min(r·A, clip(r, 1-low, 1+high)·A)`: only the bound that the advantage pushes against is active."""
    return Gate(where(advantage >= 0, minimum(residual, high), maximum(residual, -low)))''',
        '''"""PPO's `min(r·A, clip(r, 1-low, 1+high)·A)`: only the bound that the advantage pushes against is active."""
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
        "a score that turns advantages round is proved", "laws/test_inward",
        """    if subject.proved("positivity"):
        return proved("hierarchy", "𝒢(r) > 0,""",
        """    if not subject.proved("nothing"):
        return proved("hierarchy", "𝒢(r) > 0,""",
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
)  # fmt: skip

WORDS = (
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
        "a gate reads log-probs of what is trained", "laws*locality",
        "if not atom.policy.is_frozen:", "if atom.policy.is_passed:",
    ),
    slip(
        "a level reads log-probs of single tokens", "laws*locality",
        'if self.stratum in self.h.leaves:\n            return None\n        why = f"two tokens',
        'if self.here:\n            return None\n        why = f"two tokens',
    ),
    slip(
        "a statistic is read over what lies over the element", "laws*locality",
        "self.places = (stratum, *self.all.coarser(stratum))", "self.places = self.all.strata",
    ),
    slip(
        "a scale reads what a recovery reads", "laws*locality",
        "back = [(Recovery, h.decomposition.recovery), (Weight, h.decomposition.scale)]",
        "back = [(Recovery, h.decomposition.recovery), (Recovery, h.decomposition.scale)]",
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
        "statistics remember the hashes of another process", "test_immutable",
        "def __reduce__(self) -> tuple[Any, ...]:  # as Apply's\n        return Aggregate",
        "def reduced(self) -> tuple[Any, ...]:  # as Apply's\n        return Aggregate",
    ),
    slip(
        "order remembers the hashes of another process", "test_immutable",
        "def __reduce__(self) -> tuple[Any, ...]:  # as Apply's\n        return Ordered",
        "def reduced(self) -> tuple[Any, ...]:  # as Apply's\n        return Ordered",
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
        "a level reads in which order its tokens come", "laws*locality",
        "if atom.of is None and self.stratum not in self.h.leaves:", "if self.stratum in self.h.leaves and not self.here:",
    ),
    slip(
        "a density reads what it likes of what comes before", "laws*locality",
        "return super().order(atom) or next(filter(None, read), None)", "return super().order(atom)",
    ),
    slip(
        "a gate reads the mean of nothing", "laws*locality",
        "if empty in numbers:", "if empty not in atoms(gate) and empty not in numbers:",
    ),
    slip(
        "means of elements that there may be none of are proved", "laws/test_objective",
        "return atom if number is None else atom / number * number", "return atom",
    ),
    slip(
        "the printed loss is without its penalties", "printing/test_show",
        """yield f"J = Σ_i μ_i·{product}" + "".join(f" - {_penalised(k, p)}" for k, p in h.penalties.items())""",
        'yield f"J = Σ_i μ_i·{product}"',
    ),
    slip(
        "JSON leaves out strata of penalties", "language/test_terms",
        "yield from (p.over for p in self.penalties.values() if p.over is not None)", "yield from ()",
    ),
)  # fmt: skip

LAWS = (
    slip(
        "the domain of sqrt is forgotten",
        "test_operators laws*markov laws*recovery laws*identity laws/test_random laws*first_order laws*right laws*wrong",
        "numeric=np.sqrt, domain=lambda x: ((x, NOT_NEGATIVE),),", "numeric=np.sqrt, domain=everywhere,",
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
        "what may be 0 has one sign too few",
        "laws*markov laws*reflecting laws*identity laws*recovery laws/test_random laws*quiver populations",
        "return possible - ZERO if any(0 not in s for s in parts) else possible | ZERO", "return possible - ZERO",
    ),
    slip(
        "the sign of a denominator is forgotten", "laws*markov laws*reflecting laws*identity laws/test_random",
        "found = _multiplied(found, _raised(factor(f), p))", "found = _multiplied(found, _raised(factor(f), max(p, 0)))",
    ),
    slip(
        "one polynomial beside another may have a term more", "test_polynomials",
        "if not p.terms.keys() ^ q.terms.keys() <= {ONE}:", "if not p.terms.keys() - q.terms.keys() <= {ONE}:",
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
        "terms are added without what they share", "test_polynomials laws/test_signs",
        "return Quotient(Fraction(1, scale), shared) * as_quotient", "return Quotient(Fraction(1, scale), {}) * as_quotient",
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
        "return all(courses.signs(e, inside) <= allowed for e, allowed in (self.needs if needs is None else needs))",
        "return all(inside.signs(e) & allowed for e, allowed in (self.needs if needs is None else needs))",
    ),
    slip(
        "no counterexample beyond the constants of a law", "laws*reflecting laws*markov",
        "return sorted({1, 2, 3, *(n + d for n in numbers for d in (-1, 0, 1, 2) if n + d > 0)})",
        "return sorted({1, 2, 3})",
    ),
    slip(
        "sizes at which a condition changes are not tried", "laws*reflecting laws*search",
        "for m in (n - 1, n, n + 1):", "for m in (1, 2):",
    ),
    slip(
        "siblings in counterexamples are all of one size", "laws*markov laws*search",
        "for _ in range(over(k) if s == uneven else fan.get(s, 1))]", "for _ in range(fan.get(s, 1))]",
    ),
    slip(
        "values of parameters at which a condition changes are not tried", "laws*reflecting laws*identity",
        "choices[a] = list(dict.fromkeys([*choices[a], *self.changes(a, first, *_range(p))]))", "choices[a] = choices[a]",
    ),
    slip(
        "log ratios are tried at round numbers alone", "laws*recovery",
        "in dict.fromkeys([*PROBES, *_changes(deciding, here)]):", "in PROBES:",
    ),
    slip(
        "what is 0 to fifty digits is 0", "laws*search laws*recovery",
        'raise NoValue("a division by 0") if d.low == d.high else Unsure', 'raise NoValue("a division by 0")',
    ),
    slip(
        "what may lie outside a domain lies outside", "laws*search laws*recovery",
        "if not signs <= allowed:\n            raise Unsure", "if not signs <= allowed:\n            raise NoValue",
    ),
    slip(
        "a double root between two numbers is passed over", "laws*search",
        "if abs(v) <= min(abs(u), abs(w)) and abs(v) < max(abs(u), abs(w)):", "if v == 0:",
    ),
    slip(
        "counterexamples have one leaf element", "laws*reflecting laws*markov laws*orthogonality",
        "MAX_LEAVES = 5 ", "MAX_LEAVES = 1 ",
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
        "a defect of an operator counts as a missing value", "laws*wrong",
        "element, bound)\n        except NoValue:", "element, bound)\n        except (ArithmeticError, TypeError):",
    ),
    slip(
        "giving up first_order covers positivity",
        "laws/test_verify laws*positivity laws*right laws*first_order grammar documents",
        'COVERS = {"first_order": ("first_order", "identity")}',
        'COVERS = {"first_order": ("first_order", "identity", "positivity")}',
    ),
    slip(
        "what the finest level takes away is forgotten", "laws*reasons laws*positivity",
        "sums = [1 + sum(chosen) for chosen", "sums = [1 + sum(chosen[:-1]) for chosen",
    ),
    slip(
        "a sum that falls with a mean counts as positive", "laws*reasons laws*positivity",
        "if any(slope.is_negative for slope in left):\n                continue",
        "if all(slope.is_negative for slope in left):\n                return True",
    ),
    slip(
        "a gated ratio on one stratum needs a value alone", "laws*reasons laws*positivity laws*recovery",
        "if Claim(whole, subject.at(leaf), POSITIVE).is_shown else", "if Claim(whole, subject.at(leaf)).is_shown else",
    ),
    slip(
        "a hyperbolic tangent is that of half its argument", "laws*recovery laws*reasons",
        "1 - 2 / (1 + sympy.exp(2 * a))", "1 - 2 / (1 + sympy.exp(a))",
    ),
    slip(
        "differences of a polynomial are its slope", "laws/test_one_variable",
        "        row = [a + b for a, b in zip([0, *row], [*row, 0], strict=True)]",
        "        row = [0, *row] if not any(row[1:]) else [*row, 0]",
    ),
    slip(
        "a polynomial that touches 0 does not", "laws/test_one_variable laws/test_sharper",
        "found |= ZERO if power % 2 == 0 else frozenset({0, -end})", "found |= frozenset() if power % 2 == 0 else frozenset({0, -end})",
    ),
    slip(
        "what has an even root changes its sign nowhere, nor does any other", "laws/test_one_variable laws/test_sharper",
        "found |= ZERO if power % 2 == 0 else frozenset({0, -end})", "found |= ZERO",
    ),
    slip(
        "a square may be 0 and is not", "laws/test_sharper laws*reasons",
        "return lead if room == POSITIVE else lead | ZERO if room <= NOT_NEGATIVE else ANY",
        "return lead if room <= NOT_NEGATIVE else ANY",
    ),
    slip(
        "a root pulls as its factor, whatever is beside it", "laws/test_sharper laws*reasons",
        "return frozenset(side * s for s in more) if own <= against else ANY", "return frozenset(side * s for s in more)",
    ),
    slip(
        "attributes do not reach their upper bounds", "laws/test_sharper laws*reasons",
        "return replace(between(low, high, open=above_0), closed=low is not None and high is not None)",
        "return between(low, high, open=above_0)",
    ),
    slip(
        "totals are bounded like one element", "laws/test_sharper",
        "(variable(count) * constant(b.numerator), b.denominator)", "(constant(b.numerator), b.denominator)",
    ),
    slip(
        "differences of counts may be any number", "laws/test_sharper laws*reasons",
        "whole = within.upper is None and isinstance(ATOM_OF.get(atom_expression(atom)), Count)", "whole = False",
    ),
    slip(
        "everything is a whole number", "laws/test_sharper laws*reasons",
        "whole = within.upper is None and isinstance(ATOM_OF.get(atom_expression(atom)), Count)", "whole = True",
    ),
    slip(
        "counterexamples have attributes outside their ranges", "laws/test_witness",
        "return value if high is None else min(value, high)", "return value",
    ),
    slip(
        "attributes above their ranges are taken", "runtime/test_bad_index",
        "return outside if self.upper is None else outside | (value > self.upper)", "return outside",
    ),
    slip(
        "a reason for one penalty covers all of them", "laws/test_given_up",
        'OF_FORMULAS = ("agreement", "mask_open", "causal", "kl_gradient")', 'OF_FORMULAS = ("agreement", "mask_open", "causal")',
    ),
    slip(
        "a reason for a roll-back covers a bound on the wrong side", "laws/test_given_up",
        "known = {_way(o) for o in unnamed if _way(o) or o.status == \"refuted\"}", "known = {_way(v)}",
    ),
    slip(
        "what is left of a law is not asked", "laws/test_given_up",
        "if (d.subject in faults and not is_given_up)", "if (d.subject in faults and d.status == \"proved\")",
    ),
    slip(
        "giving up first_order covers a wrong gradient", "laws*gradient laws/test_verify",
        'COVERS = {"first_order": ("first_order", "identity")}',
        'COVERS = {"first_order": ("first_order", "identity", "gradient")}',
    ),
    slip(
        "agreement for advantages that are constant on any stratum is that of the gradient", "laws*gradient",
        "if h.rows in (s, *h.coarser(s)))", "if s != h.leaves[0])",
    ),
    slip(
        "a bound that is 0 has no sign", "laws/test_search",
        "SIGNS[low < 0, low <= 0 <= high, high > 0]", "SIGNS[low < 0, low < 0 <= high, high > 0]",
    ),
    slip(
        "coefficients are looked at on policy alone", "laws*gradient",
        "for concrete in few for way in", "for concrete in few[:0] for way in",
    ),
    slip(
        "what is declared at r = 1 is not asked where the law of recovery holds", "laws*gradient laws*first_order",
        '(0,) if subject.proved("recovery") and not stopped else SIDES', '() if subject.proved("recovery") else SIDES',
    ),
    slip(
        "the slope of a recovery is not asked where gates agree to first order alone", "laws*first_order",
        "if not exact and not is_smooth(subject):", "if False:",
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
        "quotients that tend to 1 refute a slope", "laws*search laws*identity",
        "return None in off or off[-1] > off[0] * Fraction(99, 100)", "return True",
    ),
    slip(
        "beside a point the terms beyond the first do not count in a quotient", "laws*search laws*identity",
        "found.append((self.term(low + k) - taken) / lead)", "found.append(self.term(low + k) / lead)",
    ),
    slip(
        "beside a point a tie is a comparison that holds", "laws*search laws*identity",
        "return (self - other).signs == {-1}", "return (self - other).signs <= {-1, 0}",
    ),
    slip(
        "one advantage of each sign is enough", "laws*identity",
        "*between(sorted(branching(gate, here)))]", "]",
    ),
    slip(
        "what is out of time is kept", "laws*budget",
        "    if not in_time or any(v.internal_error", "    if in_time is None or any(v.internal_error",
    ),
    slip(
        "a reason covers a law that nobody has decided", "laws*budget",
        'return verdict.status != "proved" and not verdict.is_unfinished', 'return verdict.status != "proved"',
    ),
    slip(
        "laws that were not reached are left out", "laws*budget",
        "    for law in later:\n        rest = replace(first", "    for law in later[:0]:\n        rest = replace(first",
    ),
    slip(
        "facts have a time of their own", "laws*budget",
        "self.left = self.left - (monotonic() - began) if ended else 0.0", "self.left = self.left if ended else 0.0",
    ),
    slip(
        "a thread is told once that its time is out", "laws*budget",
        "while self._is_at_work() and monotonic() < until:", "if self._is_at_work() and monotonic() < until:",
    ),
    slip(
        "a work inside a work is not told", "laws*budget",
        "            caller._inside.append(self)", "            pass",
    ),
    slip(
        "a work that has ended may be told", "laws*budget",
        "self._may_be_told, self._has_ended = False, True", "self._has_ended = True",
    ),
    slip(
        "a value of too many digits is a missing one", "laws*budget test_expressions",
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
        "a mean of x over tokens of all signs is one variable with that over x > 0", "laws*equivalent",
        "for side in (0,) if self.variables.on_policy else SIDES:", "for side in (0,) if self.variables.on_policy else (1,):",
    ),
    slip(
        "a condition loses the sign of its number", "laws*equivalent",
        "sympy.Integer(1), 1 if number > 0 else -1", "sympy.Integer(1), 1",
    ),
    slip(
        "conditions that no batch meets prove everything", "laws*equivalent",
        "if not any(self.variables.asked(*place) for place in self.places):", "if not self.places:",
    ),
    slip(
        "equal lengths are asked for nowhere", "laws*equivalent",
        "if seen.setdefault(concrete.below(leaf, i, c.on), value) != value:", "if seen.setdefault(i, value) != value:",
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
        "a root of 0 has a slope", "laws*equivalent_rare",
        "needs = case.needs if by_value else case.needs_of_slopes(may_move)", "needs = case.needs",
    ),
    slip(
        "what cancels always had a value", "laws*equivalent_rare",
        "return frozenset(a for e in formulas for a in atoms(e) if a in self.partial)", "return frozenset()",
    ),
    slip(
        "of kept tokens no branch is empty", "laws*equivalent_rare",
        "if isinstance(a, Count) and leaf in self.variables.pair.shape.leaves_over(a.of):", "if isinstance(a, Count):",
    ),
    slip(
        "what is the same at a tie is taken to have the same slope there", "laws*equivalent",
        "at_ties(e.sympy(), known) if by_value else e.held() for", "at_ties(e.sympy(), known) for",
    ),
    slip(
        "statistics of tokens are differentiated", "laws*equivalent_words",
        "return found if flows else stop(found)", "return found",
    ),
    slip(
        "tokens that are not kept are counted with the others", "laws*equivalent_words",
        'counted = [k.condition for k in objective.kept if k.normaliser == "kept"]', "counted = []",
    ),
    slip(
        "policies that are the same say other things", "laws*equivalent_words",
        "away |= dict.fromkeys(group - {OLD, CURRENT}, (zero,) * n)", "away |= {}",
    ),
    slip(
        "log-probs are compared at no tie", "laws*equivalent_words",
        "Breaks(**{k: tuple(v)[:MOST] for", "Breaks(**{k: tuple(v)[:0] for",
    ),
    slip(
        "weights and conditions are no part of a loss", "laws*equivalent",
        "Counter(objective.weighed), Counter(objective.kept), h.rows", "h.rows",
    ),
    slip(
        "a formula for a parameter is compared where the parameter cannot be that", "laws*equivalent",
        "ranges += [formula > as_expression(p.lower)] if", "ranges += [] if",
    ),
    slip(
        "a mean and what is largest are one variable", "laws*equivalent_words",
        'if kind not in ("total", "mean"):', 'if kind == "quantile":',
    ),
    slip(
        "a frozen policy that is the same as the current one is moved with it", "laws*equivalent_words",
        "return old + stop(token_log_ratio)", "return old + token_log_ratio",
    ),
    slip(
        "where all policies are the same the current one has no slope", "laws*equivalent_rare",
        "if not policy.is_frozen:\n            return old + token_log_ratio",
        "if not policy.is_frozen and not self.on_policy:\n            return old + token_log_ratio",
    ),
    slip(
        "a strict comparison of limits holds at a tie", "language*limits",
        "one.value > other.value:", "one.value >= other.value:",
    ),
    slip(
        "a coefficient forgets the means that a token moves", "laws*equivalent",
        "            if z not in self.folded:\n                found[z] = slope",
        "            if z not in self.folded:\n                found[z] = 0 * slope",
    ),
    slip(
        "advantages differ where they are asked to be one", "laws*equivalent",
        "part = [first if p == part[k] else p for p in part]", "part = [p for p in part if first >= 0]",
    ),
    slip(
        "penalties are no part of a loss", "laws*equivalent_terms",
        "if has_same_penalties(self.pair):", "if not has_same_penalties(self.pair) or self.places:",
    ),
    slip(
        "penalties add nothing to the coefficients of a witness", "laws*equivalent_terms",
        "(c - p for c, p in both)", "(c for c, p in both)",
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
        "a benchmark draws what was out of time as if it had ended", "bench*laws",
        "total = [timeout if r.out_of_time else", "total = [LEAST if r.out_of_time else",
    ),
    slip(
        "a benchmark tries again what was out of time", "bench*laws",
        "            if r.out_of_time:\n                continue\n            say(", "            say(",
    ),
    slip(
        "digits are mpmath's own", "laws*budget",
        "digits = _DIGITS.context", "digits = mpmath.mp",
    ),
    slip(
        "a refuted law counts as proved where its weight is 0",
        "laws*markov laws*reflecting laws*orthogonality laws/test_random",
        "Claim(f.weight, subject.at(f.source), POSITIVE)",
        "Claim(f.weight, subject.at(f.source), frozenset({0, 1}))",
    ),
    slip(
        "means that count for a residual are forgotten in its reach", "test_reach laws*facts",
        "added = 1 + sum(-c for c in factors if c < 0)", "added = 1",
    ),
    slip(
        "a gated ratio of 0 is no counterexample", "laws*positivity laws*facts laws/test_random",
        "value <= -rounding(gate, recovery) or (value == 0 and not rounding(gate, recovery))",
        "value < -rounding(gate, recovery)",
    ),
    slip(
        "ratios on several levels are tried for one advantage", "laws*positivity",
        "signs = (Fraction(1), Fraction(-1)) if any(advantage in atoms(e) for e in read) else (Fraction(1),)\n    tried",
        "signs = (Fraction(1),)\n    tried",
    ),
    slip(
        "an argument that moves twice counts once in the coefficients", "laws/test_coefficients",
        "found[k] = found.get(k, Fraction(0)) + factor * slope", "found[k] = factor * slope",
    ),
    slip(
        "coefficients forget the weights of the objective", "laws/test_coefficients",
        "weighted = [m * w * a for m, w, a in zip(self.weights,", "weighted = [w * a for m, w, a in zip(self.weights,",
    ),
    slip(
        "gates below the tokens read the advantage of the first token of the batch", "laws/test_coefficients",
        "first = self.fibres[stratum][element][0]\n", "first = 0\n",
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
        "a kernel in no cover is not asked", "laws/test_reflecting laws/test_quivers",
        "yield from (decide_share(f, wrong, subject) for f in h.shape.uncovered())", "yield from ()",
    ),
    slip(
        "a part of the batch has its share by way of any leaf", "laws/test_reflecting language/test_strata",
        "last = next(f for f in cover if leaf in self.leaves_over(f.source))", "last = cover[0]",
    ),
    slip(
        "a part of what does not sum to 1 is blamed for it", "laws/test_reflecting",
        "if any(way.steps & set(c) for way in ways)), None)", "if not ways), None)",
    ),
    slip(
        "a kernel that would not reflect is blamed for paths that disagree", "laws/test_coherent",
        "return weight if all(sums_to_1(c, changed) for c in covers) else None", "return weight",
    ),
    slip(
        "every disagreement follows from a kernel that fails", "laws/test_coherent",
        "return failed[0] if failed and agreed(subject, right) else None", "return failed[0] if failed else None",
    ),
    slip(
        "the kernel that is blamed counts among those that must agree without it", "laws/test_coherent",
        "others = [g for g in h.fibrations if g != f]", "others = [*h.fibrations]",
    ),
    slip(
        "numbers in JSON have six digits", "laws/test_wrong laws/test_recovery laws/test_first_order",
        "_size(value) > MOST_WRITTEN else str(value)", "_size(value) > MOST_WRITTEN else shown(value)",
    ),
    slip(
        "the batch of a counterexample is left out of JSON where it is large", "laws/test_reflecting",
        "            if (below := self.shape.below(s))\n", "            if (below := self.shape.below(s)) and self.size[s] < 64\n",
    ),
    slip(
        "a sum is blamed on a kernel that has values", "laws/test_markov laws/test_reflecting laws/test_verify",
        'lacking = (f"kernel {f.name}" for f in fibrations if not Claim(f.weight, subject.at(f.source)).is_shown)',
        'lacking = (f"kernel {f.name}" for f in fibrations)',
    ),
    slip("causes are lost where verdicts are kept", "laws/test_kept", "cause=c and Cause(*c))", "cause=None)"),
    slip(
        "GitHub is told of what follows too", "cli/test_main",
        "for v in o.report.causes]", "for v in o.report.failures]",
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
    slip(
        "a crowd counts for two", "amplification",
        "return self.alike[stratum][element] if stratum in self.alike else 1", "return 1",
    ),
    slip(
        "R∘F is said to be the identity where it agrees at r = 1 alone", "first_order",
        'return "R∘F = id" if subject.proved("recovery") else', 'return "R∘F = id" if subject.verdicts else',
    ),
    slip("formulas of any length are compared", "amplification", "MOST_NAMES = 20", "MOST_NAMES = 200"),
    slip(
        "at the far end of a slope a ratio is largest", "amplification",
        "end = p.high if (signs == {1}) == (up == 1) else p.low", "end = p.high",
    ),
)  # fmt: skip

WEIGHED = (
    slip(
        "what is stopped keeps its slope in witnesses", "laws/test_tokens laws/test_agreement",
        'if operator == "stop":\n        return held(arguments[0])', 'if operator == "stop":\n        return arguments[0]',
    ),
    slip(
        "a statistic has a slope", "laws/test_tokens",
        "list(self.log_ratios) if self.flows else [held(x) for x in self.log_ratios]", "list(self.log_ratios)",
    ),
    slip(
        "a log-prob of the current policy is that of the old", "laws/test_tokens laws/test_agreement",
        "return self.log_prob(OLD, k) + self._moving[k]", "return self.log_prob(OLD, k)",
    ),
    slip(
        "a quantile stands at the value below it", "laws/test_tokens laws/test_agreement",
        "return a * (1 - share) + b * share", "return a",
    ),
    slip(
        "tokens that stand for many count as one", "laws/test_tokens",
        "[self._number(*p, *place) for p in inside]", "[1 for p in inside]",
    ),
    slip(
        "every condition takes its tokens out of the counts", "laws/test_tokens",
        'if k.normaliser == "kept"])', "])",
    ),
    slip(
        "rows that have no kept token are counted", "laws/test_tokens",
        "there = {below(leaf, i, atom.of) for leaf, i in tokens if leaf in reach",
        "there = {below(leaf, i, atom.of) for leaf in reach for i in range(concrete.size[leaf]) if leaf in reach",
    ),
    slip(
        "a weight of a dropped token is asked for", "laws/test_tokens",
        "found = [w and w * value_of(here.value(weight, k))", "found = [w * value_of(here.value(weight, k))",
    ),
    slip(
        "a weight need only have a limit", "laws/test_agreement",
        "return all(ends and all(vanishes(e - 1) for e in ends) for ends in found)",
        "return all(ends and all(vanishes(e - ends[0]) for e in ends) for ends in found)",
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
        "what rises from below 0 is above it", "laws/test_courses",
        "return (side,) if began * side >= 0 else", "return (side,) if began * side >= -1 else",
    ),
    slip(
        "what turns has the sign of its start", "laws/test_courses laws/test_inward",
        "if began * side < 0 and _turn(side * f) == -1 else None", "if began * side < 0 else None",
    ),
    slip(
        "a mask that may hold is open", "laws/test_agreement",
        "if all(here.outcomes(keep.condition) == {True}", "if all(True in (here.outcomes(keep.condition) or ())",
    ),
    slip(
        "policies other than the current one stay where they are", "laws/test_agreement",
        "if isinstance(atom, LogProb) and atom != REFERENCE:", "if isinstance(atom, LogProb) and not REFERENCE:",
    ),
    slip(
        "a weight may be negative", "laws/test_agreement",
        'f"weight {weight}{whose}", read, NOT_NEGATIVE', 'f"weight {weight}{whose}", read, ANY',
    ),
    slip(
        "a slope that is stopped counts for the gradient", "laws/test_agreement",
        "return flowing(sympy.diff(to_sympy(self.value), variable))",
        "return sympy.diff(flowing(to_sympy(self.value)), variable)",
    ),
    slip(
        "a gate that stays still agrees to first order", "laws/test_agreement",
        "if is_one(subject) and has_slope_one(subject, still=True):", "if is_one(subject) and has_slope_one(subject):",
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
        "a total of nothing is positive", "laws/test_emptiness",
        "return found | ZERO if of_none or found >= NOT_ZERO else found",
        "return found | ZERO if found >= NOT_ZERO else found",
    ),
    slip(
        "a statistic's formula is read where the statistic is", "laws/test_emptiness",
        "self.elsewhere(place).signs(to_sympy(formula)) for place, formula in read",
        "self.anywhere.signs(to_sympy(formula)) for place, formula in read",
    ),
    slip(
        "some of none holds where it holds of each", "laws/test_emptiness",
        "if known == {True} and self.assume.may_be_of_none(statistic):", "if False:",
    ),
    slip(
        "statistics of domains are known row by row", "laws/test_facts_weights",
        "return place != h.rows and h.rows not in shape.coarser(place)", "return place == Stratum(BATCH)",
    ),
)  # fmt: skip

COMPILER = (
    slip(
        "what reads a quantile is computed in the tokens' precision", "backends*quantiles",
        "return frozenset(found | reading | {n for n in made if n.stratum in leaves})", "return frozenset(found)",
    ),
    slip(
        "a quantile over part of a segment's tokens is taken inside its sweep", "backends*quantiles",
        "return all(self.primary[leaf] == node.target for leaf in node.sources) and not self._cut(node.target)",
        "return all(self.primary[leaf] == node.target for leaf in node.sources)",
    ),
    slip(
        "the residual is taken against the gated base", "vectors gradients test_quivers",
        's = self.named(residuals[name], "residual", name, channel)',
        's = self.named(next((binary("sub", self.density[name, channel], self.pull(down[u.name, channel], name)) '
        'for u in self.shape.coarser(stratum)), residuals[name]), "residual", name, channel)',
    ),
    slip(
        "levels between root and leaf are dropped", "vectors gradients test_quivers",
        'down[name, channel] = self.named(level, "down", name, channel)',
        'down[name, channel] = self.named(level if name in self.leaves else '
        'outputs[Key("gated", name, channel)], "down", name, channel)',
    ),
    slip(
        "a residual is taken against the coarser residual", "vectors test_quivers",
        "for node, sign in self.coarser(stratum, density):", "for node, sign in self.coarser(stratum, {**density, **found}):",
    ),
    slip(
        "the score estimator differentiates its ratio", "vectors laws*first_order test_quivers",
        'binary("mul", Detach(ratio), advantage)', 'binary("mul", ratio, advantage)',
    ),
    slip(
        "the adjoint of a broadcast is a maximum", "gradients test_adjoint",
        "return [(node.operand, Push(node.source, node.target, cotangent))]",
        'return [(node.operand, Push(node.source, node.target, cotangent, "max"))]',
    ),
    slip(
        "the adjoint of a matrix is the matrix", "backends*quivers test_adjoint",
        "Mix(node.into, node.of, cotangent, not node.transposed)", "Mix(node.into, node.of, cotangent, node.transposed)",
    ),
    slip(
        "a contribution that comes twice counts once", "test_adjoint gradients",
        "weights = [nodes.count(n) for n in unique]", "weights = [1 for n in unique]",
    ),
    slip(
        "behind a closed gate 0·inf is NaN", "hard_inputs gradients test_adjoint test_optimise",
        'product = scalar("select", closed, ZERO, product)', "product = times(slope, received)",
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
        "what flows back along an order goes the way it came", "test_adjoint test_order",
        "Scan(s, node.target, given, node.discount, not node.forward)",
        "Scan(s, node.target, given, node.discount, node.forward)",
    ),
    slip(
        "what flows back along an order comes from every leaf", "test_adjoint",
        "cotangent if s == node.into else Const(0.0, s)", "cotangent if s == node.into else Const(1.0, s)",
    ),
    slip(
        "gradients flow through the order that a gate reads", "test_order",
        "{a: Detach(self.atom(a, stratum.name)) for a in atoms(formula)",
        "{a: self.atom(a, stratum.name) for a in atoms(formula)",
    ),
    slip(
        "doubling forgets that discounts are squared", "test_order",
        "share, reach = share * share, 2 * reach", "share, reach = share, 2 * reach",
    ),
    slip(
        "doubling reaches into the row before", "test_order",
        "x = torch.where(room >= reach, x + share", "x = torch.where(room >= 1, x + share",
    ),
    slip(
        "a vector of sums hands on what is not discounted", "test_order",
        "(discounted ? powers[WIDTH] * carry : carry)", "carry",
    ),
    slip(
        "what comes after is left in the wrong order", "test_order",
        "if (!forward) found = SHUFFLE(found, REVERSE);", "",
    ),
    slip(
        "a sweep takes sums along others than its segments", "test_order",
        "self.along = own - self._read_elsewhere()", "self.along = own",
    ),
    slip(
        "a quantile of sums is taken before they are set aside", "test_order",
        "if node in self.within and not all(v in known for v in node.operands[:-1])", "if False",
    ),
    slip(
        "a token is among those that come after it", "test_order",
        'places = "i" if node.forward else "(tokens - 1 - i)"', 'places = "i" if node.forward else "(tokens - i)"',
    ),
    slip(
        "what a prefix is compared with is rounded", "test_order",
        "isinstance(n, Map) and n.stratum in leaves and _jumps_by_order(n)}", "False}",
    ),
    slip(
        "segments list their tokens as they lie, whatever their positions", "test_order test_positions",
        "            if listed.order is not None:\n", "            if False:\n",
    ),
    slip(
        "interning forgets a reduction", "test_ir.py test_lower test_operator",
        "else v) for v in given])", 'else v) for v in given if v not in ("sum", "max")])',
    ),
    slip(
        "x - x is 0 for infinities too", "hard_inputs bad_input test_optimise test_rules",
        "return a if b is ZERO else _rule(scalar(\"neg\", b)) if a is ZERO else s",
        "return ZERO if a is b else a if b is ZERO else _rule(scalar(\"neg\", b)) if a is ZERO else s",
        "    Rule(sub(X, ZERO), X),\n", "    Rule(sub(X, ZERO), X),\n    Rule(sub(X, X), ZERO),\n",
    ),
    slip(
        "0 - x is x", "test_rules test_optimise",
        '_rule(scalar("neg", b)) if a is ZERO else s', "b if a is ZERO else s",
        "    Rule(sub(ZERO, X), neg(X)),\n", "    Rule(sub(ZERO, X), X),\n",
    ),
    slip(
        "a compared choice has one condition for both branches", "test_rules test_optimise gradients",
        '_rule(scalar("and", _rule(scalar("not", condition)), b))', '_rule(scalar("and", condition, b))',
        "Rule(lt(select(C, P, Q), K), either(both(C, lt(P, K)), both(no(C), lt(Q, K)))),",
        "Rule(lt(select(C, P, Q), K), either(both(C, lt(P, K)), both(C, lt(Q, K)))),",
    ),
    slip(
        "the maximum of -x is minus that of x", "metrics test_optimise test_operator",
        'if isinstance(node, Push) and node.reduce == "sum" and isinstance(x := node.operand, Map) and x.body.op == "neg":',
        'if isinstance(node, Push) and isinstance(x := node.operand, Map) and x.body.op == "neg":',
    ),
    slip(
        "a token with a channel that passed is not clipped", "metrics test_operator test_quivers",
        'body = reduce(partial(scalar, "mul"), map(arg, range(len(every_channel))))', 'body = reduce(partial(scalar, "add"), map(arg, range(len(every_channel))))',
    ),
    slip(
        "what a coarse stage reads of other ranks' rows is not gathered", "compiler*spread runtime*spread",
        "waiting |= {n: None for n in mine if n in read or spread.cuts(n, program.leaves)}",
        "waiting |= {n: None for n in mine if spread.cuts(n, program.leaves)}",
    ),
    slip(
        "an advantage is read of rows that other ranks have", "compiler*spread",
        'n: None for n in program.inputs if n.kind in GIVEN and', 'n: None for n in program.inputs if not n.kind and',
    ),
    slip(
        "a sum over cut rows is one rank's", "compiler*spread runtime*spread",
        "return over_tokens and node.stratum not in self.whole", "return over_tokens and not node.stratum",
    ),
    slip("parts of a term are too large to add up exactly", "compiler*spread", "RANGE = 2.0**69", "RANGE = 2.0**72"),
    slip(
        "units lie further apart than a part's sum has room for", "compiler*spread",
        "UNITS = (2.0**40, 2.0**10, 2.0**-20,", "UNITS = (2.0**40, 2.0**10, 2.0**-24,",
    ),
    slip(
        "a term out of range is summed as if it were in it", "compiler*spread",
        'body = rounded if found else scalar("select", inside, rounded, const(float("nan")))', "body = rounded",
    ),
    slip(
        "fractions count as whole numbers", "compiler*spread",
        "return abs(value) if value == value and abs(value) <= SMALL and value == int(value) else None",
        "return abs(value) if value == value and abs(value) <= SMALL else None",
    ),
    slip(
        "what is put together is not written back", "backends*ranks",
        "bound.vector_of(node, work, batch).copy_(whole)", "vectors[node] = whole",
    ),
    slip(
        "the shape of a tile follows the tokens of this rank", "backends*ranks",
        "tokens = index.ranks.tokens if index.ranks else sum(", "tokens = sum(",
    ),
    slip(
        "a gradient flows through weights and conditions", "test_token_words",
        "self.read[key] = Detach(node)", "self.read[key] = node",
    ),
    slip(
        "a gradient flows through statistics", "test_token_words",
        "return Detach(found)", "return found",
    ),
    slip(
        "what is dropped is multiplied by 0", "test_token_words",
        'return Map(scalar("select", scalar("lt", ZERO, arg(0)), arg(1), ZERO), (kept, node))',
        'return Map(scalar("mul", arg(0), arg(1)), (kept, node))',
    ),
    slip(
        "nothing keeps steep slopes from tokens that are dropped", "test_token_words",
        "drops = any(objective is not None and objective.kept for objective in weighed)", "drops = False",
    ),
    slip(
        "μ counts kept tokens where all are to be counted", "test_token_words",
        'conditions = [k.condition for k in objective.kept if k.normaliser == "kept"]',
        "conditions = [k.condition for k in objective.kept]",
    ),
    slip(
        "a statistic is compared in the tokens' precision", "test_token_words",
        "coarse = place not in (None, leaf) and not any(a in known for a in read)", "coarse = False",
    ),
    slip(
        "statistics are summed in the tokens' precision", "test_token_words",
        "if isinstance(n, Push) and (n.wide or n in cut)", "if isinstance(n, Push) and n in cut",
    ),
    slip(
        "what a quantile still needs of a row is not saved for it", "test_token_words",
        "[n for _, n in self.stores] + self.asides", "[n for _, n in self.stores]",
    ),
    slip(
        "weights of dropped tokens are to be finite", "test_token_words",
        'return {leaf: where_kept(program.outputs.get(program.part("kept", leaf)), w) for leaf, w in found.items()}',
        "return found",
    ),
    slip(
        "what is counted once over each element is counted once", "test_token_words",
        'found: Node = binary("mul", one, ir.count_input(source, target))', "found: Node = one",
    ),
    slip(
        "what nothing lies over has a largest", "test_empty_branches",
        "if not self.may_be_empty(source, target):", "if reduce == 'max' or not self.may_be_empty(source, target):",
    ),
    slip(
        "metrics of weights have the weights of dropped tokens", "test_metrics",
        "weights = {leaf: where_kept(kept[leaf], program.outputs[program.part(word, leaf)])", "weights = {leaf: program.outputs[program.part(word, leaf)]",
    ),
    slip(
        "the log ratio of a formula is the other way round", "test_token_words",
        "return -token_log_ratio", "return token_log_ratio",
    ),
)  # fmt: skip

BACKENDS = (
    slip(
        "the upper neighbour of a quantile may lie beyond the bound", "backends*quantiles",
        "if (k + next >= n - above) high = INFINITY, above = 0;", "if (k >= n - above) high = INFINITY, above = 0;",
    ),
    slip(
        "C finds a quantile among what is no number", "backends*quantiles",
        "if (kept + below + above < n) return NAN;", "if (n < 0) return NAN;",
    ),
    slip(
        "of several leaves the values set aside last are left", "backends*quantiles",
        """place = " + ".join(["i", *(f"{w}_offsets[b + 1] - {w}_offsets[b]" for w in before)])""", 'place = "i"',
    ),
    slip(
        "Triton takes the number at a place for the one after it", "backends*quantiles",
        "b = torch.where(k + 1 < equal, a, least)", "b = torch.where(k < equal, a, least)",
    ),
    slip(
        "C sums tokens in float32", "hard_inputs test_c.py test_shipped test_chains",
        "f\"double {self.names[push]} = {'0' if push.reduce == 'sum' else '-INFINITY'};\"",
        "f\"float {self.names[push]} = {'0' if push.reduce == 'sum' else '-INFINITY'};\"",
    ),
    slip(
        "C reads places as int32", "test_c.py test_shipped test_chains",
        'INTEGERS: "const int64_t *restrict {0}"', 'INTEGERS: "const int32_t *restrict {0}"',
    ),
    slip(
        "C takes the number of a token for its place", "vectors test_shipped test_chains",
        "(WHOLE_##S ? start + (i) :", "(WHOLE_##S ? first + (i) :",
    ),
    slip(
        "C leaves out the last piece of a long sum", "test_c.py hard_inputs test_shipped test_chains",
        "at < end ? at : end, at + LONG < end ? at + LONG : end)", "at < end ? at : end, at + LONG < end ? at + LONG : at < end ? at : end)",
    ),
    slip(
        "C leaves a masked place before the first row as it was", "hard_inputs test_shipped test_chains",
        'f"if (!b) FILL_GAP({out}, 0, start);"', 'f"if (!b) FILL_GAP({out}, 1, start);"',
    ),
    slip(
        "C rounds ties of bfloat16 away from 0", "c_math",
        "h = (i + 0x7fff + (i >> 16 & 1)) >> 16", "h = (i + 0x8000) >> 16",
    ),
    slip(
        "C reads bfloat16 as whole numbers", "test_c.py hard_inputs test_shipped test_chains",
        "{ return from_bf16(*p); }", "{ return (float)*p; }",
    ),
    slip(
        "the key of a built library leaves out the flags", "test_c.py",
        "parts = [source, *flags, *cc, version(cc), _processor()]", "parts = [source, *cc, version(cc), _processor()]",
    ),
    slip(
        "Triton's tiles reach one token too far", "triton test_shipped test_chains",
        "return i, i < n, tl.minimum(i, n - 1), n > 0", "return i, i <= n, tl.minimum(i, n - 1), n > 0",
    ),
    slip(
        "Triton reads what lies after a row", "test_ptx",
        "return i, i < n, tl.minimum(i, n - 1), n > 0", "return i, i < n, i, n > 0",
    ),
    slip(
        "Triton reads before a row that has no token left", "test_ptx test_layouts",
        "return i, i < n, tl.minimum(i, n - 1), n > 0", "return i, i < n, tl.minimum(i, n - 1), n >= 0",
    ),
    slip(
        "Triton sums what lies beyond a row", "triton test_shipped test_chains",
        'value = f"tl.where(m, {typed(names[push.operand], precision)}, {NEUTRAL[push.reduce]})"',
        "value = typed(names[push.operand], precision)",
    ),
    slip(
        "Triton does not fill masked places after a row", "triton test_shipped test_chains",
        "{value}, mask=i < left(reach, t, BLOCK_T))", "{value}, mask=m)",
    ),
    slip(
        "C fills gaps between segments that are out of order", "backends/test_layouts",
        "if (WHOLE_{w} && COUNTED_{w}) {{ /* masked", "if (WHOLE_{w}) {{ /* masked",
    ),
    slip(
        "Triton fills gaps between segments that are out of order", "backends/test_layouts",
        'f"if {word}_positions is None and {word}_tokens is None:"', 'f"if {word}_positions is None:"',
    ),
    slip(
        "the certificate leaves out what Triton adds to a kernel's parameters", "test_standalone",
        '"parameters": str(dict(kernel.parameters))', '"parameters": str(dict(request.signature))',
    ),
    slip(
        "the certificate says what was asked for, not what the file is for", "test_standalone test_ahead",
        '"target": kernel.target', '"target": arch',
    ),
    slip(
        "Triton's blocks arrive without a release", "test_ptx",
        'tl.atomic_add(counter, 1, sem="acq_rel")', 'tl.atomic_add(counter, 1, sem="relaxed")',
    ),
    slip(
        "Triton's last program is the one of the last number", "test_grid_order",
        "last = tl.atomic_add(", "last = tl.program_id(0) + 0 * tl.atomic_add(",
    ),
    slip(
        "Triton's groups of a coarse stage wait for nothing", "test_ptx",
        'self.line(1, "tl.debug_barrier()")\n', "pass\n",
    ),
    slip(
        "Triton asks for what a sweep has yet to save", "test_chains",
        "            if isinstance(node, Pull):  # which may be saved here, and is read elsewhere\n                self.value(1, node)\n            else:\n                self.need(1, node)\n",
        "            self.need(1, node)\n",
    ),
    slip(
        "a program of a coarse stage goes on before others have begun", "test_ptx test_grid_order",
        'self.line(1, "if last_to_arrive(counter):")', 'self.line(1, "if tl.program_id(0) == 0:")',
    ),
    slip(
        "programs of a coarse stage share what needs the results of others", "test_triton.py",
        "if alone and reads <= own and (", "if (",
    ),
    slip(
        "torch works in place on what it reads", "vectors gradients test_shipped test_chains",
        '"expm1": "torch.expm1({})"', '"expm1": "({}).expm1_()"',
    ),
    slip(
        "torch takes fibres to be sorted that begin so", "vectors test_operator test_shipped test_chains",
        "is_sorted = bool((parent[1:] >= parent[:-1]).all())", "is_sorted = bool((parent[1:] >= parent[:-1]).any())",
    ),
    slip(
        "Triton sums in order from the last token of the row before", "backends/test_order ptx",
        "inside = m & (i > 0)\n", "inside = m\n",
    ),
    slip(
        "Triton carries from tile to tile what is not discounted on the way", "backends/test_order ptx",
        "power * carry[:, None]", "carry[:, None] + 0.0 * power",
    ),
    slip(
        "Triton carries from tile to tile what the last one has summed alone", "backends/test_order ptx",
        "carry = tl.sum(tl.where(column == columns - 1, sum, 0.0), axis=1)", "carry = tl.sum(tl.where(column == columns - 1, value, 0.0), axis=1)",
    ),
    slip(
        "Triton sums what comes after in the order of what comes before", "backends/test_order ptx",
        "neighbour = a - way", "neighbour = a - 1",
    ),
)  # fmt: skip

RUNTIME = (
    slip(
        "metrics are gathered from beside where they lie", "backends/test_c.py",
        "np.repeat(starts - before, lengths) + np.arange(lengths.sum())", "np.repeat(starts, lengths) + np.arange(lengths.sum())",
    ),
    slip(
        "counts of single elements are those of the first", "runtime/test_metrics",
        'key = (of, over, self.index.size[over] if row.how == "each" else 1)', "key = (of, over, 1)",
    ),
    slip(
        "a quantile lies at its level of n numbers, not of the n - 1 between them", "backends*quantiles",
        "place = level * last\n", "place = level * (last + 1)\n",
    ),
    slip(
        "what fills up a rank's tokens counts in quantiles", "backends*quantiles",
        "pad(parent.double(), (0, room), value=float(NOWHERE))", "pad(parent.double(), (0, room), value=0.0)",
    ),
    slip(
        "a policy that no formula names is taken", "test_bad_input",
        "        if name not in known:\n            raise BatchError(\n                f\"no formula of", "        if False:\n            raise BatchError(\n                f\"no formula of",
    ),
    slip(
        "log ratios are taken in the precision of the log-probs", "hard_inputs",
        "return values.reshape(-1)[batch.index.positions_of(leaf)].double()",
        "return values.reshape(-1)[batch.index.positions_of(leaf)]",
    ),
    slip(
        "advantages per row are read by the number of the element", "hard_inputs test_operator test_shipped test_chains",
        "batch.advantage[index.row_tensor()[index.rows_of_tokens(node.over)]]", "batch.advantage[index.rows_of_tokens(node.over)]",
    ),
    slip(
        "attributes per row are read by the number of the element", "test_operator.py hard_inputs test_index runtime/test_index.py",
        "array[places.row_numbers])", "array[: len(places.row_numbers)])",
    ),
    slip(
        "a result is left as it is where no kernel fills it", "backends/test_layouts",
        "lay.positions is None and lay.tokens is None for lay", "lay.positions is None for lay",
    ),
    slip(
        "a segment without tokens starts at 0", "test_layout",
        "start = np.concatenate([[0], ends])[cuts[:-1]]", "start = np.zeros(segments, np.int64)",
    ),
    slip(
        "tokens of a segment are taken for neighbours", "test_layout hard_inputs",
        "((starts[1:] == ends[:-1]) | (segment[1:] != segment[:-1]))", "(starts[1:] >= ends[:-1])",
    ),
    slip(
        "tokens of a row are counted from its first place", "test_layout runtime/test_index.py",
        "np.where(run < 0, 0, self.before[run] + inside)", "np.where(run < 0, 0, self.before[run] + places - self.starts[run])",
    ),
    slip(
        "whole numbers are numbered in the order of their values", "runtime/test_index.py test_index",
        "order = np.sort(first[first >= 0])", "order = first[first >= 0]",
    ),
    slip(
        "a tensor is a label that equals itself alone", "runtime/test_index.py test_index bad_index",
        "if label is None or isinstance(label, Tensor) or label != label:", "if label is None or label != label:",
    ),
    slip(
        "a negative number is the label of a token where an array says so", "runtime/test_index_quiver test_index",
        "return None if per_token and labels.min(initial=0) < 0 else _of_integers(labels)", "return _of_integers(labels)",
    ),
    slip(
        "a negative whole number is not seen behind its equal", "runtime/test_index.py test_index",
        "per_token and isinstance(label, Number) and label != abs(label)", "per_token and isinstance(label, int) and label < 0",
    ),
    slip(
        "an index has a number per token though rows are labelled", "token_sized",
        "spans, of_rows = self.spans[leaf], self.of_rows(leaf, segments)", "spans, of_rows = self.spans[leaf], None",
    ),
    slip(
        "where tokens lie is a number for each", "token_sized",
        "edges = np.flatnonzero(np.diff(keep, prepend=False, append=False))",
        "edges = np.flatnonzero(np.diff(keep.astype(int), prepend=0, append=0))",
    ),
    slip(
        "an advantage per trajectory is the least of its tokens'", "bad_input test_index_quiver hard_inputs",
        "torch.where(low == high, low, torch.nan).double()", "low.double()",
    ),
    slip(
        "a parameter per channel that requires grad is read as a number", "requires_grad",
        "        return any(map(requires_grad, value.values()))\n", "        return False\n",
    ),
    slip(
        "of policies that require grad the gradient is dropped", "requires_grad",
        'named.update({f"policies[{name!r}]": t for name, t in policies.items()})', "pass",
    ),
    slip(
        "what requires grad is refused where no gradient is recorded", "requires_grad hard_inputs",
        "            if graph:\n                refuse_graphs(program, parameters, policies, advantages=advantages, **tokens)",
        "            if True:\n                refuse_graphs(program, parameters, policies, advantages=advantages, **tokens)",
    ),
    slip(
        "a column of advantages is taken for a row", "bad_input",
        "{-1 if shape == (*one, 1) else 0}", "{0}",
    ),
    slip(
        "half precision is warned of whatever the gate", "test_precision",
        "if REACHES * moved > band:", "if moved:",
    ),
    slip(
        "rounding does not average over an element's tokens", "test_precision",
        "moved = each / math.sqrt(over)", "moved = each",
    ),
    slip(
        "every call warns of half precision", "test_precision",
        "            self._knows_rounding = True\n", "",
    ),
    slip(
        "a compiled call has the metrics of all words", "test_compiled",
        "metrics=call.asked, **call.more)", "**call.more)",
    ),
    slip(
        "a compiled gate's gradient forgets the parameters", "test_compiled",
        '    call = _call("gate", *given)\n    with torch.enable_grad():', '    call = _call("gate", *given)\n    call.more["parameters"] = {}\n    with torch.enable_grad():',
    ),
    slip(
        "a copy of an index has the number of the other", "test_compiled",
        'if name != "handle"}', "if name}",
    ),
    slip(
        "rows without tokens are elements", "hard_inputs test_operator runtime/test_index.py",
        "self.row_numbers = np.flatnonzero(np.diff(before))", "self.row_numbers = np.arange(len(before) - 1)",
    ),
    slip(
        "masked tokens count in the batch", "hard_inputs test_operator metrics",
        "torch.tensor([self.size[of]], device=self.device).double()",
        "torch.tensor([int(np.prod(self.shape)) if of in self.leaves else self.size[of]]).double()",
    ),
    slip(
        "what is assumed to be populated is not looked at", "index*assumed",
        "empty = (index.count(of, over) == 0).nonzero()", "empty = (index.count(of, over) < 0).nonzero()",
    ),
    slip(
        "no batch is out of balance", "index*assumed",
        "<= TOLERANCE * np.maximum(given, asked)] = 0", "<= 2 * np.maximum(given, asked)] = 0",
    ),
    slip(
        "paths are not compared where they may disagree", "index*quiver",
        "    if not h.shape.is_tree:\n        paths_agree(index)", "    if h.shape.is_tree:\n        paths_agree(index)",
    ),
    slip(
        "a label is told by Python's hash, which each process seeds for itself", "ranks/test_labels",
        "found = np.frombuffer(b\"\".join([digest(canonical(label)) for label in labels]), \">u8\").astype(np.uint64)",
        "found = np.array([hash(label) % 2**64 for label in labels], np.uint64)",
    ),
    slip(
        "1 and '1' are one label", "ranks/test_labels",
        'str: lambda value: b"s" + value', 'str: lambda value: b"n" + value',
    ),
    slip(
        "two labels of one hash are one element", "ranks/test_bad_spread_index",
        "if names[one] != names[other]:", "if False:",
    ),
    slip(
        "what one rank says of an element is not compared with what another does", "ranks/test_bad_spread_index",
        "wrong = np.flatnonzero((origin[element] >= 0) & (known[element] != mine))", "wrong = np.flatnonzero(origin[element] < -1)",
    ),
    slip(
        "elements are numbered in the order of their hashes where rows have no keys", "ranks/test_spread_index",
        "        if not self.keyed:\n            order", "        if False:\n            order",
    ),
    slip(
        "elements are numbered as they come where rows have keys", "ranks/test_spread_index",
        "        if not self.keyed:\n            order", "        if True:\n            order",
    ),
    slip(
        "a turn that two ranks have lies in one row", "ranks/test_spread_index",
        "(inside[number] == NOWHERE) | (inside[number] == mine), mine, STRADDLES", "inside[number] == NOWHERE, mine, inside[number]",
    ),
    slip(
        "tokens of other ranks do not count", "ranks/test_spread_index",
        "total[number] += p.counts[edge]", "total[number] = p.counts[edge]",
    ),
    slip(
        "a number's digits depend on what it is added to", "test_sums",
        "digit = np.trunc(", "digit = np.rint(",
    ),
    slip(
        "a row is called what another row's element is", "ranks/test_spread_index",
        "label = self.labels[rows][element]", "label = self.labels[rows][number]",
    ),
    slip(
        "masses of other ranks' tokens are left out", "ranks/test_spread_index",
        "        if source not in self.leaves:\n            return mine", "        if True:\n            return mine",
    ),
    slip(
        "rows of one key on one rank are not cut", "ranks/test_spread_index",
        "cut=len(np.unique(pieces)) < len(pieces)", "cut=False",
    ),
    slip(
        "a parameter may lie on its bound", "test_parameters",
        "return (value <= low) | (value >= high) | (value != value)", "return (value < low) | (value >= high) | (value != value)",
    ),
    slip(
        "parameters per element are not checked", "test_parameters test_operator",
        "        wrong = self.parameter.is_outside(found)\n", "        wrong = np.zeros(len(found), bool)\n",
    ),
    slip(
        "numbers by label are not checked", "runtime/test_parameters",
        "if not self.parameter.is_outside(found).any():", "if found is not None:",
    ),
    slip(
        "the channels of a tensor lie in rows", "runtime/test_parameters",
        "found = found[:, COLUMNS.index(self.channel)] if found.ndim == 2",
        "found = found.reshape(2, -1)[COLUMNS.index(self.channel)] if found.ndim == 2",
    ),
    slip(
        "an element without a value has the default, whatever is said of all others", "runtime/test_parameters",
        "value.get(None, self.parameter.default)), **value}", "self.parameter.default), **value}",
    ),
    slip(
        "values by label are in the order in which they were written", "runtime/test_parameters",
        "of = {label: value[label] for label in numbers}", "of = {label: value[label] for label in value if label in numbers}",
    ),
    slip(
        "a slip in a label is another domain", "runtime/test_parameters",
        "if known or looks_like(str(one), str(label))]", "if known]",
    ),
    slip(
        "a part of a batch has the elements of the whole in their order there", "runtime/test_index_parts",
        "    order = used[np.argsort(first)]\n    number =", "    order = used\n    number =",
    ),
    slip(
        "a part of a batch has its rows in their order there", "runtime/test_index_parts",
        "        mine = number[chosen][filled]", "        mine = np.sort(number[chosen][filled])",
    ),
    slip(
        "a part of a batch has the attributes of the first tokens", "runtime/test_index_parts",
        "(np.cumsum(is_of) - 1)[tokens[is_of[tokens]]]", "np.arange(is_of[tokens].sum())",
    ),
    slip(
        "a part of a batch forgets what rows are called", "runtime/test_index_parts",
        "    if index.has_row_names:\n        names", "    if False:\n        names",
    ),
    slip(
        "a part of a batch forgets in which order its tokens come", "runtime/test_index_parts",
        "positions = None if index.given_positions is None else index.given_positions[tokens]", "positions = None",
    ),
    slip(
        "an index that moved keeps what was worked out elsewhere", "runtime/test_index_parts",
        "values=values, device=target, _cache={})", "values=values, device=target)",
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
        "metrics of micro-batches are averaged", "metrics",
        "return Mean(self.sum + other.sum, self.count + other.count)",
        "return Mean(self.sum / self.count + other.sum / other.count, torch.tensor(2.0))",
    ),
    slip(
        "the smaller of two minima is lost", "metrics",
        "pick = torch.maximum if self.largest else torch.minimum", "pick = torch.maximum",
    ),
    slip(
        "an entry of the cache is written in place", "test_c.py",
        "            workshop.rename(place)\n", "            shutil.copytree(workshop, place)\n",
    ),
    slip(
        "a name in capitals is near to none", "test_main",
        "difflib.get_close_matches(word.casefold().replace(\"-\", \"_\"), written, 1)",
        "difflib.get_close_matches(word, written, 1)",
    ),
    slip(
        "the doctor finds any backend well", "test_doctor",
        "    if difference <= AGREEMENT:\n", "    if not difference > 1:\n",
    ),
    slip(
        "the doctor takes a broken machine for usable", "test_doctor",
        "    broken = [f.name for f in findings if f.state == \"broken\"]\n", "    broken: list[str] = []\n",
    ),
    slip(
        "a new project takes the place of files", "test_project",
        "    there = [name for name in files if (folder / name).exists()]\n", "    there: list[str] = []\n",
    ),
    slip(
        "what is printed goes where long work is told of", "test_progress",
        "    seen = sys.stdout.isatty()\n", "    seen = True\n",
    ),
    slip(
        "a reason is markup in a notebook", "test_notebooks",
        "{' | '.join(map(_cell, row))}", "{' | '.join(row)}",
    ),
    slip(
        "a notebook shows refusals alone", "test_notebooks",
        "    if v.accepted:\n        return f\"given up: {v.given_up}\" if v.status != \"proved\" else v.argument\n    said = {\n        \"required\"",
        "    if v.accepted:\n        return \"\"\n    said = {\n        \"required\"",
    ),
    slip(
        "a command that never came to its end went well", "test_outcome",
        "    return left or UNUSABLE\n", "    return left\n",
    ),
    slip(
        "handlers at exit change a verdict", "test_outcome",
        "        return int(said) or (left if left >= 0 else 128 - left)\n",
        "        return left if left >= 0 else 128 - left\n",
    ),
    slip(
        "a result that was not written is one", "test_outcome",
        "        end = SystemExit(UNUSABLE)\n", "        pass\n",
    ),
    slip(
        "a spec that is imported ends the process", "test_outcome",
        "        if (os.getpid(), threading.get_ident()) in here:\n", "        if () in here:\n",
    ),
    slip(
        "what a spec forks does not end", "test_outcome",
        "        if (os.getpid(), threading.get_ident()) in here:\n", "        if here:\n",
    ),
    slip(
        "what is kept is run, whoever wrote it", "test_cache",
        "    for doubt in filter(None, doubts):\n", "    for doubt in ():\n",
    ),
    slip(
        "a cache folder that others may write is taken", "test_cache",
        "    doubt = doubt_of(home)\n    if doubt:\n", "    doubt = doubt_of(home)\n    if doubt and doubt is None:\n",
    ),
    slip(
        "what is built is a group's to write where the umask says so", "test_cache",
        "            made.chmod(0o644)\n", "            made.chmod(0o664)\n",
    ),
    slip(
        "any group counts as the user's own", "test_cache",
        "    alone = {*its.gr_mem} <= {user.pw_name}\n", "    alone = True\n",
    ),
    slip(
        "the cache folder itself may be sticky", "test_cache test_kept",
        "doubt = doubt_of_one(part, info, sticky=not end)", "doubt = doubt_of_one(part, info, sticky=True)",
    ),
    slip(
        "damage in the cache goes unseen", "test_c.py",
        "all(_digest(place / name) == digest for name, digest in contents.items())",
        "all((place / name).exists() for name, digest in contents.items())",
    ),
    slip(
        "the last trajectories of a batch are in no micro-batch", "test_record",
        "pairwise([*ends[:-1:trajectories], ends[-1]])", "pairwise(ends[::trajectories])",
    ),
    slip(
        "a label may be one too large", "rollouts/test_file",
        "(x >= NONE) & (x < len(names))", "(x >= NONE) & (x <= len(names))",
    ),
    slip(
        "ranks are as fast as the fastest of them", "bench/test_ranks",
        'slowest = max(a["seconds"]', 'slowest = min(a["seconds"]',
    ),
    slip(
        "a rank's part of a batch lacks its first row", "bench/test_ranks",
        "rows, tokens = slice(first, last),", "rows, tokens = slice(first + 1, last),",
    ),
    slip(
        "tied actions share equally", "trust_region*maximiser",
        "(values == extreme[states.of_token]), multiplicity, 0.0)",
        "(values == extreme[states.of_token]), multiplicity.sign(), 0.0)",
    ),
    slip(
        "a tensor of parameters that was changed in place is taken for what it was", "test_parameters",
        "if version is None or version != known:", "if version is None or known is None:",
    ),
    slip(
        "parameters are kept under their numbers, whatever elements have them", "test_parameters",
        'key = f"{index.device} {shapes} {', 'key = f"{index.device} {',
    ),
    slip(
        "a recorded graph reads parameters that are forgotten later", "test_parameters",
        "index.keep(key, made)", "index.keep(key, ())",
    ),
    slip(
        "parameters are copied to the device in every call", "test_issued",
        "made = _MADE.get(key, make)", "made = make()",
    ),
    slip(
        "totals are read back in every call", "test_issued",
        "    @once\n    def total(", "    def total(",
    ),
    slip(
        "generated torch copies constants from the host", "test_issued test_golden",
        "a = torch.full((), a, dtype=torch.float64, device=condition.device)",
        "a = torch.tensor(a, dtype=torch.float64, device=condition.device)",
    ),
    slip(
        "a device is asked whether rows and tokens agree", "test_issued",
        "if not devices.may_look(index.device):\n            same", "if devices.may_look(index.device):\n            same",
    ),
    slip(
        "a gradient that another pass needs is handed out", "test_backward",
        "result = known.to(dtype, copy=_graph_is_kept())", "result = known.to(dtype)",
    ),
    slip(
        "parameters of the last call serve every other", "test_parameters",
        "return type(given), given or repr(given)", "return type(given), 0",
    ),
    slip(
        "a call in another dtype runs the functions of the first", "test_c test_layouts shipped",
        "varying = (batch.dtype, call.bound.per_row(batch), *dtypes)", "varying = (call.bound.per_row(batch),)",
    ),
    slip(
        "ranks may ask for different metrics", "ranks/test_calls",
        'said |= {"the metrics asked for": ", ".join(sorted(asked)) or "none"}', "pass",
    ),
    slip(
        "an incoming gradient is taken for 1", "test_backward",
        "if ctx.looks and float(gradient) == 1.0:", "if ctx.looks:",
    ),
    slip(
        "maxima of elements are added up", "test_metrics",
        "parts.append(block.amax(1) if largest else block.sum(1))", "parts.append(block.sum(1))",
    ),
    slip(
        "the smallest ratio is shown negated", "test_metrics",
        "            numbers[self.negated : self.negated + 1].neg_()\n", "            pass\n",
    ),
    slip(
        "single elements come where their level alone is asked for", "test_asked",
        "return row.group in asked and row.over in asked", "return row.group in asked",
    ),
    slip(
        "means over nothing are logged as 0", "test_asked",
        "            elif numbers[p.count]:\n                found[prefix + p.name] = value / numbers[p.count]",
        "            else:\n                found[prefix + p.name] = value / max(numbers[p.count], 1)",
    ),
    slip(
        "an error on one rank is raised there alone", "test_agreement",
        "            agree(group, what, said, error)\n        raise", "            pass\n        raise",
    ),
    slip(
        "a row's reward counts as often as it has tokens", "test_bad_rewards",
        "            if per_row and not index.rows_are_tokens():\n", "            if False:\n",
    ),
    slip(
        "the rank that an error came from is not named", "test_agreement test_calls",
        'f"rank {rank}: "\n', '""\n',
    ),
    slip(
        "ranks do not say which call they are in", "test_agreement test_calls",
        'said = {"the call": what, **said}', "said = dict(said)",
    ),
    slip(
        "a group that failed is asked again", "test_agreement",
        "    except RanksError:  # of a group that failed, or of what all ranks have seen: nobody waits\n        raise\n", "",
    ),
    slip(
        "a part that is not finite is cast to a whole number", "test_collect",
        "exact = multiples.abs() <= EXACT", "exact = torch.ones_like(multiples, dtype=torch.bool)",
    ),
    slip(
        "parts of sums are rounded before they are added up", "test_collect",
        "torch.where(exact, multiples, 0.0).long())", "torch.where(exact, multiples.float(), 0.0).long())",
    ),
    slip(
        "ranks may differ about an element that they share", "test_collect test_calls",
        "differs = (high != low)", "differs = (high < low)",
    ),
    slip(
        "a rank that fails leaves the others waiting", "test_collect test_calls",
        "for stage in stages[len(self._met) :]:", "for stage in stages[:0]:",
    ),
    slip(
        "a rank that fails joins the collectives that it has been at", "test_collect",
        "for stage in stages[len(self._met) :]:", "for stage in stages:",
    ),
    slip(
        "the collectives of the call before count in this one", "test_collect",
        "self._met.clear()", "self._met.copy()",
    ),
    slip(
        "what a failed rank sends is taken for numbers", "test_collect",
        "if devices.may_look(gathered.device) and bool", "if not devices.may_look(gathered.device) and bool",
    ),
    slip(
        "every rank's loss is that of the whole batch", "test_calls",
        "result.objective, index.gradient_scale)", "result.objective, 1.0)",
    ),
    slip(
        "a rank's gradient is scaled as that of one process", "ranks/test_training",
        "return self.group.size if self.group else 1", "return 1",
    ),
    slip(
        "names of rows are per token where there are as many", "test_index_quiver",
        "return stratum != self.h.rows and not self.h.shape.is_chain", "return not self.h.shape.is_chain",
    ),
    slip(
        "rows without keys have the numbers of their rank", "test_bad_spread_index",
        "if self.spread and stratum == self.rows and not self.keyed:", "if False:",
    ),
    slip(
        "parameters may differ between ranks", "test_calls",
        "                said |= in_words(self.hierarchy, declared, index, ranks, parameters)\n", "",
    ),
    slip(
        "the rank whose value is not finite raises alone", "test_calls",
        'with agreed(group, f"what is not finite in {CALLS[program]}', 'with agreed(None, f"what is not finite in {CALLS[program]}',
    ),
    slip(
        "the gate's backward says no word", "test_calls",
        'agree(ranks.group, CALLS["gate_adjoint"], {})', "pass",
    ),
    slip(
        "a parameter in the order of elements is read on ranks that have other orders", "test_calls",
        "        if ranks is not None:\n            raise ParameterError(",
        "        if ranks is not None and size < 0:\n            raise ParameterError(",
    ),
    slip(
        "pieces of a row may have different advantages", "test_calls",
        '            batch = agree_on_rows(batch, index, ranks, "advantage", rows)\n', "            pass\n",
    ),
    slip(
        "advantages of this rank's rows are taken for those of all rows", "test_calls",
        "if per_row and stratum == index.hierarchy.rows.name and index.ranks is None:",
        "if per_row and stratum == index.hierarchy.rows.name:",
    ),
    slip(
        "terms beyond what is added up exactly go on as NaN", "test_calls",
        "if BEYOND in outputs and float(outputs[BEYOND]) > 0:", "if BEYOND in outputs and float(outputs[BEYOND]) < 0:",
    ),
    slip(
        "results at tokens that are not finite are what a gate makes of them", "test_nonfinite",
        "_unless(nothing[v.stratum], v) if v.stratum in nothing else v for", "v for",
    ),
    slip(
        "the backward of a gate knows nothing of NaN", "test_nonfinite",
        '"gate_adjoint": mark_nonfinite(only(transposed, "log_ratio_gradient"), hierarchy),',
        '"gate_adjoint": only(transposed, "log_ratio_gradient"),',
    ),
    slip(
        "the objective is what gates make of NaN", "test_nonfinite",
        'outputs = {k: _unless(counted, v) if k == Key("objective") else v for k, v in program.outputs.items()}',
        "outputs = program.outputs",
    ),
    slip(
        "NaN is added to results", "test_nonfinite",
        'Map(scalar("select", scalar("le", arg(1), ZERO), arg(0), const(float("nan"))), (node, nothing))',
        'Map(scalar("add", arg(0), arg(1)), (node, nothing))',
    ),
    slip(
        "of advantages that vary one is picked", "test_nonfinite",
        "result = torch.where(low == high, low, torch.nan)", "result = low",
    ),
    slip(
        "advantages of coarser elements are not looked at", "test_nonfinite",
        "if node.stratum in (leaf.name, BATCH) or Stratum(node.stratum) in hierarchy.coarser(leaf):",
        "if node.stratum == leaf.name:",
    ),
    slip(
        "of what may be per token or per row one is picked", "test_nonfinite",
        "same = torch.where(one == other, one, torch.nan).to(flat.dtype)", "same = one.to(flat.dtype)",
    ),
    slip(
        "positions are not read where an element has several rows", "test_positions",
        "return numbers if index.given_positions is None else index.given_positions[numbers]", "return numbers",
    ),
    slip(
        "an element is ordered by its last token", "test_positions",
        "np.minimum.at(first, index.parent(leaf, of).cpu().numpy(), keys)", "np.maximum.at(first, index.parent(leaf, of).cpu().numpy(), keys)",
    ),
    slip(
        "positions may stay the same along a row", "test_positions",
        "falls = mine[1:] <= mine[:-1]", "falls = mine[1:] < mine[:-1]",
    ),
    slip(
        "positions ascend from one row to the next", "test_positions",
        "falls[every.before[1:-1] - 1] = False", "falls[every.before[1:-1]] = False",
    ),
    slip(
        "rows that are interleaved are read one after the other", "test_positions",
        "if of_rows is not None and (index.given_positions is None or not in_several_rows(index, target).any()):", "if of_rows is not None:",
    ),
    slip(
        "what one rank has of a row is one piece, whatever comes between", "ranks/test_positions",
        "~(same & (rank[1:] == rank[:-1]))", "~same",
    ),
    slip(
        "a piece ends where positions have a gap", "ranks/test_positions",
        "~(same & (rank[1:] == rank[:-1]))", "~(same & (rank[1:] == rank[:-1]) & (start[1:] == start[:-1] + size[:-1]))",
    ),
    slip(
        "a turn is ordered by the tokens that the last rank has of it", "ranks/test_positions",
        "first[number] = np.minimum(first[number], p.first[of])", "first[number] = p.first[of]",
    ),
    slip(
        "positions that two ranks have are not noticed in a run's middle", "ranks/test_positions",
        "(start[1:] < start[:-1] + size[:-1])", "(start[1:] == start[:-1])",
    ),
    slip(
        "what comes before a piece is discounted as if its pieces were tokens", "ranks/test_positions",
        "share = discount**self.tokens", "share = discount * self.tokens.sign()",
    ),
    slip(
        "a piece hands on its last sum without its last token", "ranks/test_positions",
        "return sums, discount * (sums[end] + x[end])", "return sums, discount * sums[end]",
    ),
    slip(
        "what comes into a piece is discounted as at its first token", "ranks/test_positions",
        "added = discount**at * torch.repeat", "added = torch.repeat",
    ),
    slip(
        "ranks carry what comes after as what comes before", "ranks/test_positions",
        "at = self.inside.before if node.forward else self.inside.after", "at = self.inside.before",
    ),
)  # fmt: skip

TRAINERS = (
    slip(
        "the importance weights are left out of the advantages", "trainers/test_window",
        "result = result.to(dtype) * times.to(dtype)", "result = result.to(dtype)",
    ),
    slip(
        "every rank has the coefficients of its own rows", "trainers/test_window",
        "spread: dict[str, Any] = {} if self.ranks is None else {GROUP: self.ranks}", "spread: dict[str, Any] = {}",
    ),
    slip(
        "on a fresh step the ratio is that to other log-probs", "trainers/test_window",
        "old = now if log_probs is None or self.old_log_probs is None else self.old_log_probs",
        "old = now if self.old_log_probs is None else torch.zeros_like(now)",
    ),
    slip(
        "what is under the mask is compared too", "trainers/test_window",
        "differs = torch.where(self.mask, (second - first).abs(), 0.0)", "differs = (second - first).abs()",
    ),
    slip(
        "elements above the tokens are counted once per rank", "trainers/test_window",
        "leaves = [self._strata.index(leaf) for leaf in self.index.leaves]", "leaves = list(range(len(self._strata)))",
    ),
    slip(
        "tokens of other ranks are left out of what changed", "trainers/test_window",
        '"regimes of tokens").sum(0)', '"regimes of tokens")[0]',
    ),
    slip(
        "what is zeroed and what is rolled back is one regime", "trainers/test_window",
        "torch.where(gave == read, 0, torch.where(gave == 0, 1, 2))", "torch.where(gave == read, 0, 1)",
    ),
    slip(
        "the mean difference of a step is one rank's", "trainers/test_window",
        "torch.stack([parts[:, 0].sum(), parts[:, 1].amax()])", "torch.stack([parts[0, 0], parts[:, 1].amax()])",
    ),
    slip(
        "rows of one key are trajectories of their own", "trainers/test_window",
        "self.ranks = as_group(_Alone())", "labels = {k: v for k, v in labels.items() if k != op.hierarchy.rows.name}",
    ),
    slip(
        "a step without tokens is an error", "trainers/test_window",
        "op.index(mask=mask, attributes=attributes, positions=positions, **labels, **spread) if self.tokens else None",
        "op.index(mask=mask, attributes=attributes, positions=positions, **labels, **spread)",
    ),
    slip(
        "what sampled is corrected for in advantages that are given alone", "trainers/test_window",
        "return _weighted(self.mask, made, self.weights)", "return made",
    ),
    slip(
        "trainers give groups without gates no labels", "trainers/test_labels",
        "strata = (*reversed(hierarchy.order), *hierarchy.groups)", "strata = tuple(reversed(hierarchy.order))",
    ),
    slip(
        "recorded rewards are left where advantages were recorded too", "rollouts/test_replay",
        "    if h.advantages is not None:\n        advantages: Tensor | None = op.adv", "    if h.advantages is not None and rollouts.advantages is None:\n        advantages: Tensor | None = op.adv",
    ),
    slip(
        "a group of one that is compared already is refused", "test_bad_rewards",
        "_others(e for e in self._expressions() if e is not self.advantages)", "_others(self._expressions())",
    ),
    slip(
        "a warning comes at every step", "trainers/test_window",
        "if before or not shares:", "if not shares:",
    ),
    slip(
        "dropout of attention is no noise", "trainers/test_noise",
        '("drop" in word or "jitter" in word)', '"jitter" in word',
    ),
    slip(
        "dropout that a forward pass reads of its config is no noise", "trainers/test_noise",
        "config if isinstance(config, Mapping) else getattr(config, \"__dict__\", {})",
        "config if isinstance(config, Mapping) else {}",
    ),
    slip(
        "log-probs of weights that have changed since are known", "trainers/test_known",
        "return self._by == (_weights(model), temperature) and", "return self._by is not None and",
    ),
    slip(
        "rows of other weights stay known", "trainers/test_known",
        "self._by, self._rows = by, set()\n", "self._by = by\n",
    ),
    slip(
        "of the rows asked for one has to be known", "trainers/test_known",
        "all(row in self._rows for row in _rows(used))", "any(row in self._rows for row in _rows(used))",
    ),
    slip(
        "what is known outranks what the user says", "trainers/test_labels",
        "given[name] if name in given else known[name]", "known[name] if name in known else given[name]",
    ),
    slip(
        "NaN is a label", "trainers/test_labels",
        "return None if isinstance(value, Tensor) or value != value else value",
        "return None if isinstance(value, Tensor) else value",
    ),
    slip(
        "trajectories of a trainer have labels", "trainers/test_parameters",
        "if node.over not in labelled:", 'if node.over == "batch":',
    ),
    slip(
        "at a ratio of 1 one value is everyone's", "trainers/test_parameters",
        "{None: next(iter(value.values())), **value}",
        "{None: next(iter(value.values()))}",
    ),
    slip(
        "a window that was broken off counts", "trainers/test_scale",
        "        self._handed = []\n", "        self._handed = self._handed\n",
    ),
    slip(
        "strata below the rows are labelled by row", "trainers/test_labels",
        "if stratum not in hierarchy.leaves and hierarchy.rows in hierarchy.coarser(stratum):",
        "if stratum in hierarchy.leaves and hierarchy.rows in hierarchy.coarser(stratum) and not hierarchy.gates:",
    ),
    slip(
        "a loss of half the scale passes", "trainers/test_scale",
        "if not (abs(low - 1) <= one.bound and abs(high - 1) <= one.bound):", "if not (abs(high - low) <= one.bound):",
    ),
    slip(
        "a token that is left out passes", "trainers/test_scale",
        "if not (abs(low - 1) <= one.bound and abs(high - 1) <= one.bound):", "if not abs(high - 1) <= one.bound:",
    ),
    slip(
        "advantages that are not used pass", "trainers/test_scale",
        "        if unused:\n", "        if len(unused) == len(found) > 1:\n",
    ),
    slip(
        "of two backward passes the last counts", "trainers/test_scale",
        "self.gradient = gradient if self.gradient is None else self.gradient + gradient", "self.gradient = gradient",
    ),
    slip(
        "the rank whose loss has another scale raises alone", "trainers/test_scale",
        'with agreed(None if group is None else as_group(group), "the scale of the loss"):', 'with agreed(None, "the scale"):',
    ),
    slip(
        "a division by micro-batches is left on", "trainers/test_advantages",
        "* (accumulation * ranks)", "* ranks",
    ),
    slip(
        "an average over ranks is left on", "trainers/test_advantages",
        "* (accumulation * ranks)", "* accumulation",
    ),
    slip(
        "a count is rounded to float32", "trainers/test_advantages",
        "count = torch.as_tensor(given, dtype=like.dtype,", "count = torch.as_tensor(given,",
    ),
    slip(
        "an empty micro-batch is divided by 0", "trainers/test_advantages",
        "not (0 < float(count)", "not (0 <= float(count)",
    ),
    slip(
        "a row without tokens needs a length", "trainers/test_advantages",
        "wrong = some & ~(", "wrong = ~(",
    ),
    slip(
        "rows are divided by the width of the batch", "trainers/test_advantages",
        "kept.flatten(1).sum(1) if lengths is None", "kept[0].numel() if lengths is None",
    ),
    slip(
        "a mask may lose coefficients", "trainers/test_advantages",
        "lost = (coefficients != 0) & (mask == 0)", "lost = (coefficients != 0) & (mask < 0)",
    ),
    slip(
        "what sampled may be weighed by the trainer and by the hierarchy", "trainers/test_window",
        "if weights is not None and ROLLOUT in passed(op.hierarchy):", "if False:",
    ),
    slip(
        "a fresh step of several policies has log-probs of 0", "trainers/test_window",
        "if log_probs is None and self.old_log_probs is None and self.op.hierarchy.policies:", "if False:",
    ),
    slip(
        "log-probs of a recorded policy may be infinite", "rollouts/test_file",
        "_all(r, name, column, np.isfinite,", "_all(r, name, column, lambda x: x == x,",
    ),
    slip(
        "what sampled is taken for the old policy in a recorded batch", "plotting/test_policies",
        "_double(rollouts.policies[name])", "_double(rollouts.old_log_probs)",
    ),
    slip(
        "rows without tokens are recorded", "rollouts/test_from_batch",
        "self.rows = np.flatnonzero(np.diff(before))", "self.rows = np.arange(self.n_given)",
    ),
    slip(
        "advantages of rows without tokens stay in recorded rollouts", "rollouts/test_from_batch",
        "_floats(array, name)[self.rows], name, False", "_floats(array, name)[: len(self.rows)], name, False",
    ),
    slip(
        "what a mask hides is read", "rollouts/test_from_batch",
        "_floats(self._every(_read(value, name), name), name)[self.kept], name, True", "_floats(self._every(_read(value, name), name), name)[: len(self.kept)], name, True",
    ),
    slip(
        "float64 is rounded as it is recorded", "rollouts/test_from_batch",
        "np.float64 if array.dtype in (np.float64, np.longdouble) else np.float32", "np.float32",
    ),
    slip(
        "files of the first format have the domains of their first groups", "rollouts/test_file",
        "Labels(domain[group], domains)", "Labels(domain[group * 0], domains)",
    ),
    slip(
        "names of narrow strips stand on each other", "plotting/test_own",
        "while groups and groups[-1][0] >= mean:", "while False:",
    ),
    slip(
        "the parts that are told apart are the smallest", "plotting/test_own",
        "rank = np.argsort(np.argsort(-counts", "rank = np.argsort(np.argsort(counts",
    ),
    slip(
        "attributes of coarser elements may differ over their tokens", "plotting/test_own",
        "np.flatnonzero((of != NONE) & (numbers[of] != values))", "np.flatnonzero((of == NONE) & (numbers[of] != values))",
    ),
    slip(
        "without advantages coefficients are compared, and are 0", "plotting/test_own",
        "    if gated.advantages is None:  # they are all 0", "    if False:  # they are all 0",
    ),
    slip(
        "what is dropped keeps its weight in tables", "plotting/test_policies",
        "return np.where(self.kept, reduce(np.multiply, self.each, np.ones(len(self.kept))), 0.0)",
        "return reduce(np.multiply, self.each, np.ones(len(self.kept)))",
    ),
    slip(
        "worlds of a figure whose weights see the batch share one", "plotting/test_policies",
        "    seen |= read_of_tokens(op.hierarchy).outputs if op.hierarchy.objective.formulas else {}\n", "",
    ),
    slip(
        "a figure takes a pull for a coarser drift", "plotting/test_policies",
        'return of_tokens and _reads(operand, "advantage")', "return False",
    ),
)  # fmt: skip

SPECS = (
    slip(
        "a folder's specs are those of its first level", "test_loading",
        "yield from () if path.is_symlink() else _below(path)", "yield from ()",
    ),
    slip(
        "links to folders are followed when specs are looked for", "test_loading",
        "yield from () if path.is_symlink() else _below(path)", "yield from _below(path)",
    ),
    slip(
        "GSPO-token's own ratio has a value too", "published",
        "where(passes, x - stop(x), 0)", "where(passes, x, 0)",
    ),
    slip(
        "geometric masks count the tokens that they drop", "published",
        '(mean_ratio <= most), normaliser="kept")', "(mean_ratio <= most))",
    ),
    slip(
        "a ratio that ASPO turns over is turned over where the advantage is negative", "published",
        "where(advantage >= 0, 1 / r, r), ceiling)", "where(advantage >= 0, r, 1 / r), ceiling)",
    ),
    slip(
        "CISPO's cap is a deviation in both conventions", "published",
        "Gate(minimum(residual, ceiling - 1))},\n    decomposition=ratio_deviation(),\n    objective=token_mean().score(),", "Gate(minimum(residual, ceiling))},\n    decomposition=ratio_deviation(),\n    objective=token_mean().score(),",
    ),
    slip(
        "bad answers are what off-policy masks keep", "published",
        "(mean(-token_log_ratio, over=trajectory) <= delta)", "(mean(token_log_ratio, over=trajectory) <= delta)",
    ),
    slip(
        "the entropy's surrogate has the gradient of `r·log π`", "published",
        "exp(token_log_ratio) * (log_prob(current) - 1)", "exp(token_log_ratio) * log_prob(current)",
    ),
    slip(
        "KL-Cov takes all but the largest covariances", "published",
        "where(cov > quantile(cov, level, over=batch), coef", "where(cov <= quantile(cov, level, over=batch), coef",
    ),
    slip(
        "prime-rl's square is a half", "published",
        'penalties={"square": tau * token_log_ratio**2}', 'penalties={"square": tau / 2 * token_log_ratio**2}',
    ),
    slip(
        "RLOO compares an answer with itself", "published",
        "advantages=centred(reward, over=prompt_group, leave_one_out=True)", "advantages=centred(reward, over=prompt_group)",
    ),
    slip(
        "generalised advantages count later values whole", "published",
        "after(reward + (1 - lam) / lam * value,", "after(reward + (1 - lam) * value,",
    ),
    slip(
        "Kimi's square is taken whole", "published",
        "Penalty(tau / 2 * total(token_log_ratio", "Penalty(tau * total(token_log_ratio",
    ),
    slip(
        "REAL pulls right answers down", "published",
        "where(advantage > 0, exp(-s), 0)", "where(advantage > 0, exp(s), 0)",
    ),
    slip(
        "CTPO counts a token's own ratio twice",
        "published",
        "weigh(exp(drifted))",
        "weigh(exp(drifted + token_log_ratio))",
    ),
    slip(
        "CTPO's band is closed at the first token", "published",
        "sqrt(position(over=trajectory) + 1)", "sqrt(position(over=trajectory))",
    ),
    slip(
        "FIPO's future leaves out the token itself", "published",
        "told + after(told, over=trajectory, discount=gamma)", "after(told, over=trajectory, discount=gamma)",
    ),
    slip(
        "REINFORCE++ pays a token's divergence from the next one on", "published",
        "reward - beta * (kl + after(kl, over=trajectory))", "reward - beta * after(kl, over=trajectory)",
    ),
    slip(
        "a set of answers is drawn with answers put back", "published",
        "(M - 1) * (M - 2) * (M - 3) / maximum((N - 1) * (N - 2) * (N - 3), 1)", "M * M * M / maximum(N * N * N, 1)",
    ),
    slip(
        "the ratio before k3 is held", "published",
        "beta * exp(token_log_ratio) * (exp(-x) + x - 1)", "beta * (exp(-x) + x - 1)",
    ),
)  # fmt: skip

PENALTIES = (
    slip(
        "on a GPU a product that is subtracted from itself is its rounding",
        "test_ptx",
        'return Language("triton", OPERATORS, constant, where, itself="{} * 0.0")',
        'return Language("triton", OPERATORS, constant, where)',
    ),
    slip(
        "a penalty is added to the objective",
        "test_penalties",
        'return binary("sub", objective, added(list(found.values.values())))',
        'return binary("add", objective, added(list(found.values.values())))',
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
        "a penalty's own objective is not read",
        "test_penalties",
        "objective = penalty.objective or self.h.objective.of_penalties",
        "objective = self.h.objective.of_penalties",
    ),
    slip(
        "no gradient flows through the means that a penalty reads",
        "test_penalties",
        'return found if atom.kind in ("total", "mean") else Detach(found)',
        "return Detach(found)",
    ),
    slip(
        "a gradient flows through the weights of a penalty",
        "test_penalties",
        "inputs = (*inputs, Detach(self.tokens(weight, leaf)))",
        "inputs = (*inputs, self.tokens(weight, leaf))",
    ),
    slip(
        "a penalty of what is not kept is taken off too",
        "test_penalties",
        "body, ZERO)\n        return inputs[0]",
        "body, body)\n        return inputs[0]",
    ),
    slip(
        "a penalty that is infinite is no error", "test_penalties",
        'if key.word.startswith("term_"):', 'if key.word.startswith("no_term_"):',
    ),
    slip(
        "penalties of elements are counted by rows", "test_penalties",
        "read_at = (h.rows if penalty.over is None else penalty.over).name", "read_at = h.rows.name",
    ),
    slip(
        "what a penalty does not keep is divided by behind its sums", "test_penalties",
        '("div" in read and drops)', '("div" in read and False)',
    ),
    slip(
        "the slope of a divergence is nothing where policies are near", "test_rules test_penalties",
        "Rule(add(neg(exp(X)), ONE), neg(expm1(X)), SHARPER),", "Rule(add(neg(exp(X)), ONE), sub(ONE, exp(X)), ANY),",
    ),
    slip(
        "policies that penalties read are read by nobody", "test_penalties",
        "read += [(f\"the penalty '{name}'\", e) for e in (penalty.formula, *weighed)]", "pass",
    ),
    slip(
        "a penalty over elements is their sum", "test_penalties",
        'mean = ir.scalar("div", ir.arg(0), ir.arg(1))', "mean = ir.arg(0)",
    ),
)  # fmt: skip
REWARDS = (
    slip(
        "a mean of equal elements is rounded", "test_of_elements",
        "        return atom.of is not None\n", "        return False\n",
    ),
    slip(
        "a deviation is by n", "test_of_elements",
        'ir.scalar("div", ir.arg(0), ir.scalar("sub", ir.arg(1), ir.const(1)))', 'ir.scalar("div", ir.arg(0), ir.arg(1))',
    ),
    slip(
        "one alone has no deviation", "test_of_elements",
        'alone = ir.scalar("le", ir.arg(1), ir.const(1))', 'alone = ir.scalar("le", ir.arg(1), ir.const(0))',
    ),
    slip(
        "an element is among the others", "test_of_elements",
        'total = binary("sub", self.pull(total, own.source), own.values)', "total = self.pull(total, own.source)",
    ),
    slip(
        "tokens of a group are counted where elements count once", "test_of_elements",
        "of = self.leaves_over(over) if atom.of is None else (str(atom.of),)", "of = self.leaves_over(over)",
    ),
    slip(
        "groups are counted in labels of tokens where there are as many", "test_groups",
        "        if stratum in self.h.groups:\n            return False\n", "",
    ),
    slip(
        "rewards of rows are read at every token", "test_rewards",
        "return self.rows if self.by_row and atom == reward else super().place(atom, stratum)", "return super().place(atom, stratum)",
    ),
    slip(
        "a row counts once in a mean of tokens", "test_rewards",
        "self.elements(written, str(place)), ir.count_input(leaf, str(place))", "self.elements(written, str(place))",
    ),
    slip(
        "what is a token's own is read of its row", "test_rewards",
        "len(written) == 1 and all(self.lies_over(self.rows, s) for s in read)", "len(written) == 1 and bool(read)",
    ),
    slip(
        "advantages of rows are in the order of those with tokens", "test_rewards",
        "found[index.row_tensor()[places]] = values.expand(index.size[rows])[elements]", "found[places] = values.expand(index.size[rows])[elements]",
    ),
    slip(
        "a group of one is compared with nobody", "test_bad_rewards",
        "alone = (index.count(of, over) == 1).nonzero()", "alone = (index.count(of, over) == 0).nonzero()",
    ),
    slip(
        "whoever holds rows of one token says that rewards are per token", "ranks/test_rewards",
        "per_token = shape == index.shape and not index.rows_are_tokens()", "per_token = shape == index.shape",
    ),
    slip(
        "every rank reads rewards as it has them", "ranks/test_rewards",
        "is_per_row(index, rewards, group)", "is_per_row(index, rewards)",
    ),
    slip(
        "a reward that is not finite may become a finite advantage", "test_bad_rewards",
        'kept = ir.scalar("select", ir.scalar("le", nothing, ZERO), ir.arg(1), ir.const(float("nan")))', "kept = ir.arg(1)",
    ),
    slip(
        "advantages beside rewards are what is read", "test_bad_rewards",
        "            refuse_both(self.hierarchy, advantages)\n", "",
    ),
)  # fmt: skip
TERMS = (  # what laws say of order, advantages and penalties
    slip(
        "what comes after a token is its prefix to the law causal", "laws/test_causal",
        'one: When = "earlier" if forward else "later"', 'one: When = "earlier"',
    ),
    slip(
        "how many tokens a row has is a token's own to the law causal", "laws/test_causal laws/test_samples",
        "return self._number(a.of, tokens) | values", "return values",
    ),
    slip(
        "a mean of others has the own row in it to the law causal", "laws/test_causal laws/test_samples",
        "if a.others and self.is_coarse(of) and not place.tokens & OTHERS:", "if False:",
    ),
    slip(
        "others of others are without the token itself", "laws/test_samples",
        "if a.others and self.is_coarse(of) and not place.tokens & OTHERS:", "if a.others and self.is_coarse(of):",
    ),
    slip(
        "what comes before a token was sampled before it, whatever is in it", "laws/test_samples",
        "            inside = self.ordered(a, place)\n            return self.of(a.formula, inside) | self._number",
        "            inside = self.ordered(a, place)\n            return _each(\"value\", inside.tokens) | self._number",
    ),
    slip(
        "rewards of rows are those of earlier tokens", "laws/test_samples",
        "place.tokens | ROW if whole and place.tokens & ROW else place.tokens", "place.tokens",
    ),
    slip(
        "a count at the rows is that at a token", "laws/test_samples",
        "over = place.of if a.over is None else a.over", "over = a.over",
    ),
    slip(
        "penalties are of tokens that the loss does not count", "laws/test_samples",
        "made = made.keep(keep.condition, \"kept\") if keep.normaliser == \"kept\" else made", "pass",
    ),
    slip(
        "statistics of what varies are one number where policies coincide", "laws/test_samples",
        "return plain and all(on is None or on in below for on in given)", "return plain",
    ),
    slip(
        "off policy statistics are as they are on it", "laws/test_samples",
        "found = self._derivatives(free, self.assume) or []", "found = self._derivatives(self._at_rest(targets), self.assume) or []",
    ),
    slip(
        "a divergence to a policy that is taken to be old is one to another", "laws/test_samples",
        "if as_old and not self._only_weigh(as_old, targets, at_0):", "if False:",
    ),
    slip(
        "a condition of states tells tokens of one apart", "laws/test_samples",
        "for other in groups if _agree(state, other) for c", "for other in [state] for c",
    ),
    slip(
        "near the old policy one side is enough", "laws/test_samples",
        "self._at_rest((), near=True), self.assume, near=True)", "self._at_rest((), near=True), self.on_policy)",
    ),
    slip(
        "near the old policy statistics are as they are on it", "laws/test_samples",
        "resting = _as_old if near else _resting", "resting = _resting",
    ),
    slip(
        "what comes before an element of several rows ends before it begins", "laws/test_samples",
        "if not (of is None or self._is_in_row(of)):", "if False:",
    ),
    slip(
        "advantages are looked at from the first token alone", "laws/test_samples",
        "for k in self.own if self.places[k][0] == self.places[0][0])", "for k in self.own[:1])",
    ),
    slip(
        "batches of causal laws change an earlier token too", "laws/test_causal",
        "yield from ((k, j) for k in range(j) if below[k] == below[j])",
        "yield from ((k, j) for k in range(len(below)) if k != j and below[k] == below[j])",
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
        "steps that bend are even", "laws/test_kl_gradient",
        "if _above(first - last):", "if _above(first * last) and first * last < 0:",
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
        "how far along a row a token is, is given", "laws/test_baseline laws/test_samples",
        'return frozenset() if self.is_coarse(of) else _each("number", tokens - {"now"})',
        'return frozenset() if self.is_coarse(of) else _each("number", tokens - {"now", "earlier"})',
    ),
    slip(
        "a root of 0 has a slope in penalties", "laws/test_kl_gradient",
        'yield from e.arguments if e.operator == "sqrt" else ()', "yield from ()",
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
        "laws count the token itself among what comes before", "laws/test_words_of_order",
        "for i in range(own) if o.is_forward else range(own + 1, len(inside)):",
        "for i in range(own + 1) if o.is_forward else range(own + 1, len(inside)):",
    ),
    slip(
        "laws discount from the first token", "laws/test_words_of_order",
        "found = found + discount ** abs(i - own) *", "found = found + discount ** i *",
    ),
    slip(
        "laws take the deviation of all, not of a sample", "laws/test_words_of_order",
        "found = sqrt(sum(squares[1:], squares[0]) / (n - 1))", "found = sqrt(sum(squares[1:], squares[0]) / n)",
    ),
    slip(
        "what comes before tends to anything", "laws/test_words_of_order",
        "        if isinstance(atom, Ordered):\n            return self._ordered(atom)\n", "",
    ),
    slip(
        "nobody is alone where laws look for others", "laws/test_words_of_order",
        "        if any(min(map(len, (plain.over(*s, b) for b in range(plain.size[s[1]])))) < 2 for s in self.compared):\n            return\n", "",
    ),
    slip(
        "a prefix in a decomposition is the identity to first order", "laws/test_words_of_order",
        "return self.flows_alone and all(vanishes(v) for v in self.others)", "return self.flows_alone",
    ),
)  # fmt: skip

STUDIES = (
    slip(
        "a curve's first and last looks weigh as much as the others", "studies/test_choose",
        "return (y[..., 1:] + y[..., :-1]).mean(-1) / 2", "return y.mean(-1)",
    ),
    slip(
        "the worst domain is the one that is worst on the whole", "studies/test_choose",
        "float(area(accuracy.min(1)))", "float(area(accuracy.T).min())",
    ),
    slip(
        "a peak is that of the whole curve", "studies/test_stats",
        "low[1:] = (y[1:] < peak[:-1] / 2)", "low[1:] = (y[1:] < y.max(0) / 2)",
    ),
    slip(
        "half of a peak is a collapse", "studies/test_stats",
        "(y[1:] < peak[:-1] / 2) & (peak[:-1] >= LEAST)", "(y[1:] <= peak[:-1] / 2) & (peak[:-1] >= LEAST)",
    ),
    slip(
        "signs that say as much as those observed do not count", "studies/test_stats",
        "(total >= abs(d.sum()) - 1e-12 * np.abs(d).sum())", "(total > abs(d.sum()) + 1e-12 * np.abs(d).sum())",
    ),
    slip(
        "the interval of a sign-flip test has one end too far in", "studies/test_stats",
        "return float(means[k - 1]), float(means[-k])", "return float(means[k]), float(means[-k])",
    ),
    slip(
        "McNemar's test counts one tail", "studies/test_stats",
        "min(1.0, 2 * sum(comb(n, k)", "min(1.0, sum(comb(n, k)",
    ),
    slip(
        "Holm's p may fall", "studies/test_stats",
        "np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))", "(p[order] * np.arange(len(p), 0, -1))",
    ),
    slip(
        "nothing is cut from an interquartile mean's resamples", "studies/test_stats",
        "found = weights(len(x), len(x) // 4) @ np.sort(x)", "found = weights(len(x)) @ np.sort(x)",
    ),
    slip(
        "equals count as better", "studies/test_stats",
        "better = (a > b) + (a == b) / 2", "better = (a >= b) + 0.0",
    ),
    slip(
        "a trick's domain counts", "studies/test_analyse",
        "enumerate(CONDITIONS[condition].tricks) if trick is None]", "enumerate(CONDITIONS[condition].tricks)]",
    ),
    slip(
        "arms are paired by their places, not by seeds", "studies/test_analyse",
        "return np.array([found[seed] for seed in seeds])", "return getattr(self, name)[: len(list(seeds))]",
    ),
    slip(
        "an arm goes along its frontier the wrong way", "studies/test_analyse",
        "np.interp(middle, kl, score) - np.interp(own, kl, score)", "np.interp(own, kl, score) - np.interp(middle, kl, score)",
    ),
    slip(
        "the frontier is all settings", "studies/test_analyse",
        "while len(found) > 1 and not above(found[-2], found[-1], (x, y)):", "while len(found) > 10**9:",
    ),
    slip(
        "a setting of one lucky seed is chosen", "studies/test_choose",
        "for s, y in of.items() if set(y) == seeds}", "for s, y in of.items()}",
    ),
    slip(
        "a response sees the others to its prompt", "studies/test_model",
        "mine = (owner[None] == -1) | (owner[None] == owner[:, None])", "mine = owner[:, None] >= -1 + 0 * owner[None]",
    ),
    slip(
        "a sampler's attention is not scaled", "studies/test_model",
        "q = q.flatten(0, 2) * q.shape[-1] ** -0.5", "q = q.flatten(0, 2)",
    ),
    slip(
        "a response goes on after its end", "studies/test_model",
        "token = torch.where(said[-1] == END, END, token) if said else token", "token = token.clone()",
    ),
    slip(
        "models side by side draw one noise", "studies/test_model",
        "[torch.rand(RESPONSE, rows, VOCABULARY, generator=draw) for draw in draws]",
        "[torch.rand(RESPONSE, rows, VOCABULARY, generator=draws[0]) for draw in draws]",
    ),
    slip(
        "samples are fresher than their lag", "studies/test_learning",
        "self.put(self.rollouts(weights, step), [step + lag for lag in", "self.put(self.rollouts(weights, step), [step + max(1, lag - 1) for lag in",
    ),
    slip(
        "all first steps of a stale domain train on one batch", "studies/test_learning",
        "self.put(self.rollouts(weights, step - 1000), [step if", "self.put(self.rollouts(weights, -1000), [step if",
    ),
    slip(
        "advantages are divided by the deviation of a population", "studies/test_learning",
        "rewards.std(-1, keepdim=True)", "rewards.std(-1, correction=0, keepdim=True)",
    ),
    slip(
        "shuffled labels stay as they are for a run", "studies/test_arms",
        "generator=stream(run.seed, LABEL_STREAM, step)", "generator=stream(run.seed, LABEL_STREAM)",
    ),
    slip(
        "the gradients of domains are clipped after they are added up", "studies/test_learning",
        "gradient = gradient * (bound / gradient.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1)",
        "gradient = gradient * (bound / bound)",
    ),
    slip(
        "Adam's second moment begins without correction", "studies/test_learning",
        "scale = (self.second / (1 - b ** (number + 1))).sqrt_()", "scale = (self.second / 1).sqrt_()",
    ),
    slip(
        "luck is the same in every step", "studies/test_learning",
        "stream(s, REWARD_STREAM, moment)", "stream(s, REWARD_STREAM)",
    ),
    slip(
        "what moves up is pushed outward", "studies/test_measures",
        "outward = counted & (values * log_ratio > 0)", "outward = counted & (values > 0)",
    ),
    slip(
        "a divergence is taken from now to before", "studies/test_measures",
        "(self.before.exp() * (self.before - now))", "(now.exp() * (now - self.before))",
    ),
    slip(
        "the largest of several steps is their mean", "studies/test_measures",
        'LARGEST = ("amplification", "grad_norm")', 'LARGEST = ("amplification",)',
    ),
    slip(
        "a sum is not taken modulo 10", "studies/test_measures",
        "digits.cumsum(-1) % 10,", "digits.cumsum(-1),",
    ),
    slip(
        "a placebo without a bound has one", "studies/test_arms",
        ', of="inward_domain", fixed={"C_domain": 1e9})', ', of="inward_domain")',
    ),
    slip(
        "processes share what is left of a plan", "studies/test_runner",
        "[run for run in PARTS[part](results)[worker::workers] if key(asdict(run)) not in ready]",
        "[run for run in PARTS[part](results) if key(asdict(run)) not in ready][worker::workers]",
    ),
    slip(
        "a result is written behind a line that was cut off", "studies/test_runner",
        '"\\n" * (not ended) + json', '"" + json',
    ),
    slip(
        "what is chosen is always the study's own", "studies/test_choose",
        "write_file(results / name, text)", "write_file(RESULTS / name, text)",
    ),
    slip(
        "every prompt group of a domain weighs alike", "studies/test_arms",
        "uniform() if below in (token, trajectory) else proportional(M)", "uniform()",
    ),
)  # fmt: skip
SLIPS = (
    *LANGUAGE,
    *WORDS,
    *LAWS,
    *WEIGHED,
    *COMPILER,
    *BACKENDS,
    *RUNTIME,
    *TRAINERS,
    *SPECS,
    *PENALTIES,
    *REWARDS,
    *TERMS,
    *STUDIES,
)
