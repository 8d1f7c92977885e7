"""Slips in searches for counterexamples."""

from slips.slip import slip

SLIPS = (
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
        "choices[a] = list(dict.fromkeys([*choices[a], *self.changes(a, first, *ends(p))]))", "choices[a] = choices[a]",
    ),
    slip(
        "what is 0 to fifty digits is 0", "laws*search laws*recovery",
        'raise NoValue("a division by 0") if d.low == d.high else Unsure', 'raise NoValue("a division by 0")',
    ),
    slip(
        "what may lie outside a domain lies outside", "laws*search laws*recovery",
        "if not signs <= allowed:\n                raise Unsure", "if not signs <= allowed:\n                raise NoValue",
    ),
    slip(
        "a double root between two numbers is passed over", "laws*search",
        "if abs(v) <= min(abs(u), abs(w)) and abs(v) < max(abs(u), abs(w)):", "if v == 0:",
    ),
    slip(
        "counterexamples have one leaf element", "laws/test_search",
        "MAX_LEAVES = 5 ", "MAX_LEAVES = 1 ",
    ),
    slip(
        "a defect of an operator counts as a missing value", "laws*wrong",
        "element, bound)\n        except NoValue:", "element, bound)\n        except (ArithmeticError, TypeError):",
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
        "beside a point the terms beyond the first do not count in a quotient", "laws*search laws*identity",
        "found.append((self.term(low + k) - taken) / lead)", "found.append(self.term(low + k) / lead)",
    ),
    slip(
        "beside a point a tie is a comparison that holds", "laws*search laws*identity",
        "return (self - other).signs == {-1}", "return (self - other).signs <= {-1, 0}",
    ),
    slip(
        "equal lengths are asked for nowhere", "laws*equivalent",
        "if seen.setdefault(concrete.below(leaf, i, c.on), value) != value:", "if seen.setdefault(i, value) != value:",
    ),
    slip(
        "policies that are the same say other things", "laws*equivalent_weights",
        "away |= dict.fromkeys(group - {OLD, CURRENT}, (zero,) * n)", "away |= {}",
    ),
    slip(
        "log-probs are compared at no tie", "laws*equivalent_weights",
        "Breaks(**{k: tuple(v)[:MOST] for", "Breaks(**{k: tuple(v)[:0] for",
    ),
    slip(
        "advantages differ where they are asked to be one", "laws*equivalent",
        "part = [first if p == part[k] else p for p in part]", "part = [p for p in part if first >= 0]",
    ),
    slip(
        "penalties add nothing to the coefficients of a witness", "laws*equivalent_terms",
        "(c - p for c, p in both)", "(c for c, p in both)",
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
        "numbers in JSON have six digits", "laws/test_wrong laws/test_recovery laws/test_first_order",
        "_size(value) > MOST_BITS else str(value)", "_size(value) > MOST_BITS else shown(value)",
    ),
    slip(
        "the batch of a counterexample is left out of JSON where it is large", "laws/test_reflecting",
        "            if (below := self.shape.below(s))\n", "            if (below := self.shape.below(s)) and self.size[s] < 64\n",
    ),
    slip(
        "a crowd counts for two", "amplification",
        "return self.alike[stratum][element] if stratum in self.alike else 1", "return 1",
    ),
    slip(
        "what is stopped keeps its slope in witnesses", "laws/test_exact_statistics laws/test_agreement",
        'if row.ir == "stop":\n            return without_slopes(arguments[0])', 'if row.ir == "stop":\n            return arguments[0]',
    ),
    slip(
        "a statistic has a slope", "laws/test_exact_statistics",
        "list(self.log_ratios) if self.flows else [without_slopes(x) for x in self.log_ratios]", "list(self.log_ratios)",
    ),
    slip(
        "a log-prob of the current policy is that of the old", "laws/test_exact_statistics laws/test_agreement",
        "return self.log_prob(OLD, k) + self._moving[k]", "return self.log_prob(OLD, k)",
    ),
    slip(
        "a quantile stands at the value below it", "laws/test_exact_statistics laws/test_agreement",
        "return a * (1 - share) + b * share", "return a",
    ),
    slip(
        "tokens that stand for many count as one", "laws/test_exact_statistics",
        "[self._number(*p, *place) for p in inside]", "[1 for p in inside]",
    ),
    slip(
        "every condition takes its tokens out of the counts", "laws/test_exact_statistics",
        'if k.normaliser == "kept"])', "])",
    ),
    slip(
        "rows that have no kept token are counted", "laws/test_exact_statistics",
        "there = {below(leaf, i, atom.of) for leaf, i in tokens if leaf in reach",
        "there = {below(leaf, i, atom.of) for leaf in reach for i in range(concrete.size[leaf]) if leaf in reach",
    ),
    slip(
        "a weight of a dropped token is asked for", "laws/test_exact_statistics",
        "found = [w and w * value_of(here.value(weight, k))", "found = [w * value_of(here.value(weight, k))",
    ),
    slip(
        "advantages are looked at from the first token alone", "laws/test_statistics_of_samples",
        "for k in self.own if places[k][0] == places[0][0])", "for k in self.own[:1])",
    ),
    slip(
        "batches of causal laws change an earlier token too", "laws/test_causal",
        "yield from ((k, j) for k in range(j) if rows[k] == rows[j])",
        "yield from ((k, j) for k in range(len(rows)) if k != j and rows[k] == rows[j])",
    ),
    slip(
        "steps that bend are even", "laws/test_kl_gradient",
        "if _above(first - last):", "if _above(first * last) and first * last < 0:",
    ),
    slip(
        "laws count the token itself among what comes before", "laws/test_laws_of_order",
        "for i in range(own) if o.is_forward else range(own + 1, len(inside)):",
        "for i in range(own + 1) if o.is_forward else range(own + 1, len(inside)):",
    ),
    slip(
        "laws discount from the first token", "laws/test_laws_of_order",
        "found = found + discount ** abs(i - own) *", "found = found + discount ** i *",
    ),
    slip(
        "laws take the deviation of all, not of a sample", "laws/test_laws_of_order",
        "found = sqrt(sum(squares[1:], squares[0]) / (n - 1))", "found = sqrt(sum(squares[1:], squares[0]) / n)",
    ),
    slip(
        "nobody is alone where laws look for others", "laws/test_laws_of_order",
        "        if any(min(map(len, (plain.over(*s, b) for b in range(plain.size[s[1]])))) < 2 for s in self.with_others):\n            return\n", "",
    ),
    slip(
        "how many turns a row has is given", "laws/test_baseline_of_turns",
        "for stratum in inside if not self.h.assume else ():", "for stratum in ():",
    ),
    slip(
        "a new turn begins within a sentence", "laws/test_baseline_of_turns",
        "new_in = [s for s in inside if s == stratum or stratum in shape.coarser(s)]", "new_in = [stratum]",
    ),
    slip(
        "a new turn breaks what is assumed of turns", "laws/test_baseline_of_turns",
        "for stratum in inside if not self.h.assume else ():", "for stratum in inside:",
    ),
    slip(
        "the fix of a baseline compares turns with turns", "laws/test_baseline_of_turns",
        "atoms_within(h.advantages, Summary) if a.over in coarser)", "atoms_within(h.advantages, Summary) if a.over != h.rows)",
    ),
)  # fmt: skip
