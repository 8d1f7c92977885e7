"""Slips in the laws."""

from slips.slip import slip

SLIPS = (
    slip(
        "tokens of several rows have advantages of one sign", "laws/test_reversal",
        "if any(s != h.rows and s not in whole_batch(h).finer(h.rows) for s in coupled):", "if False:",
    ),
    slip(
        "a level may pass on less than the level over it", "laws/test_reversal",
        "or not _are_at_least(subject, own[0], over[1]):", "or False:",
    ),
    slip(
        "a gate that turns pulls round reverses no token", "laws/test_reversal",
        "pushed.is_kept(but=OPENED) or pushed.is_kept(but=LOST)", 'pushed.is_kept(but="turned")',
    ),
    slip(
        "a mean may weigh tokens below 0", "laws/test_reversal",
        "shown = never_reverses(subject, table, known) if is_mean else None", "shown = never_reverses(subject, table, known)",
    ),
    slip(
        "a token that its advantage pushes out is reversed", "laws/test_reversal",
        "c * x > 0 > a * x", "c * x > 0 < a * x",
    ),
    slip(
        "groups of given advantages need no labels", "auditing/test_identify",
        "if function.reads_rewards or h.advantages is None else h.strata", "if function.reads_rewards else h.strata",
    ),
    slip(
        "rows of all lengths count the same", "laws/test_facts_levels",
        "is_centred(self.h, of_row, over, rows)", "is_centred(self.h, sympy.Integer(1), over, rows)",
    ),
    slip(
        "weights leave a level idle", "laws/test_facts_levels",
        "if not has_levels(subject, known) or not _has_weight_one(subject):", "if not has_levels(subject, known):",
    ),
    slip(
        "log ratios leave a level idle for ever", "laws/test_facts_levels",
        "always = known in DEVIATIONS and", "always =",
    ),
    slip(
        "a mean over a coarser element is one over this one", "laws/test_facts_levels",
        "and _is_within(h, atom.over, over):", "and atom.over is not None:",
    ),
    slip(
        "an element keeps nothing of what it stops", "laws/test_facts_levels laws/test_levels_of_a_tower",
        'else f"1 - {known_share}"', 'else f"1 - 0*{known_share}"',
    ),
    slip(
        "a gate that reads densities shares as others do", "laws/test_facts_levels",
        "atomic = not any(atoms(gate, Density) for _, _, gate in gates(h))", "atomic = True",
    ),
    slip(
        "rows of a group count as one", "laws/test_facts_weight_sums",
        "gathered = self.counted(source, target) if rest == 1 else", "gathered = 1 if rest == 1 else",
    ),
    slip(
        "a sum that no usual mean has is no warning", "laws/test_facts_weight_sums",
        "return sorted(powers) in ([], [1], [-1, 1])", "return len(powers) < 3",
    ),
    slip(
        "a bound that does not mend the law is offered", "laws/test_remedies",
        "if holds(changed):", "if changed:",
    ),
    slip(
        "a fix is offered without a trial", "laws/test_remedies",
        "isinstance(o, Fix) and self._holds(o, d.subject, subject.before, decide)", "isinstance(o, Fix)",
    ),
    slip(
        "a gate to write is not local either", "laws/test_remedies",
        "if not any(reader.problem(a) for a in atoms(made)):", "if made is not None:",
    ),
    slip(
        "equal rewards are tried first", "laws*equivalent_terms",
        "patterns = [*mixed, *patterns] if pair.takes_rewards else", "patterns = [*patterns, *mixed] if pair.takes_rewards else",
    ),
    slip(
        "coefficients that are printed alike are shown as different", "laws*equivalent_terms",
        "if in_brief(c) != in_brief(d):", "if found:",
    ),
    slip(
        "sympy cancels polynomials of any degree", "laws/test_timeout",
        "any(max(abs(c.p), c.q) > MOST_POWERS for c in", "any(c.q > 10**12 for c in",
    ),
    slip(
        "powers of one root are atoms of their own", "laws/test_timeout",
        "step = unit if all(abs(each) <= MOST_POWERS * unit for each in factors) else c", "step = c",
    ),
    slip(
        "ratios never fall together", "laws/test_inward",
        "if together and n > 2:", "if together and n > 99:",
    ),
    slip(
        "a score that turns advantages round is proved", "laws/test_inward",
        """    if subject.proved("positivity"):
        return proved("hierarchy", "𝒢(r) > 0,""",
        """    if not subject.proved("nothing"):
        return proved("hierarchy", "𝒢(r) > 0,""",
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
        "back = [(Recovery, h.decomposition.recovery), (Scale, h.decomposition.scale)]",
        "back = [(Recovery, h.decomposition.recovery), (Recovery, h.decomposition.scale)]",
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
        "log ratios are tried at round numbers alone", "laws*recovery",
        "in dict.fromkeys([*PROBES, *_changes(deciding, here)]):", "in PROBES:",
    ),
    slip(
        "giving up first_order covers positivity",
        "laws/test_verify laws*positivity laws*right laws*first_order grammar documents",
        'COVERS = {"first_order": ("first_order", "identity")}',
        'COVERS = {"first_order": ("first_order", "identity", "positivity")}',
    ),
    slip(
        "a gated ratio on one stratum needs a value alone", "laws*joint_terms laws*positivity laws*recovery",
        "Claim(whole, subject.at(leaf), POSITIVE), *inside", "Claim(whole, subject.at(leaf)), *inside",
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
        "the slope of a recovery is not asked where gates agree to first order alone", "laws*first_order",
        "if not exact and not is_smooth(subject):", "if False:",
    ),
    slip(
        "quotients that tend to 1 refute a slope", "laws*search laws*identity",
        "return None in off or off[-1] > off[0] * Fraction(99, 100)", "return True",
    ),
    slip(
        "one advantage of each sign is enough", "laws*identity",
        "*between(sorted(branching(gate, here)))]", "]",
    ),
    slip(
        "what is out of time is kept", "laws*timeout",
        "    if not in_time or any(v.internal_error", "    if in_time is None or any(v.internal_error",
    ),
    slip(
        "a reason covers a law that nobody has decided", "laws*timeout",
        'return self.status != "proved" and not self.is_unfinished', 'return self.status != "proved"',
    ),
    slip(
        "laws that were not reached are left out", "laws*timeout",
        "    for law in later:\n        rest = replace(first", "    for law in later[:0]:\n        rest = replace(first",
    ),
    slip(
        "facts have a time of their own", "laws*timeout",
        "self.left = self.left - (monotonic() - began) if worker", "self.left = self.left if worker",
    ),
    slip(
        "a thread is told once that its time is out", "laws*timeout",
        "while worker.is_alive() and monotonic() < until:", "if worker.is_alive() and monotonic() < until:",
    ),
    slip(
        "a work that has ended may be told", "laws/test_timeout",
        "self.has_ended, self._may_be_told = self._may_be_told and self.error is None, False", "self.has_ended = self._may_be_told and self.error is None",
    ),
    slip(
        "a thread ends before what was raised in it arrives", "laws/test_timeout",
        "for _ in range(INSTRUCTIONS if self.is_told else 0):", "for _ in [ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), None)]:",
    ),
    slip(
        "a weight that may be 0 counts as one above 0",
        "laws*markov laws*reflecting laws*orthogonality laws/test_random",
        "Claim(f.weight, subject.at(f.source), POSITIVE)",
        "Claim(f.weight, subject.at(f.source), frozenset({0, 1}))",
    ),
    slip(
        "a kernel in no cover is not asked", "laws/test_reflecting laws/test_quivers",
        "yield from (decide_share(f, wrong, subject) for f in h.shape.uncovered())", "yield from ()",
    ),
    slip(
        "a part of what does not sum to 1 is blamed for it", "laws/test_reflecting",
        "if any(way.steps & set(c) for way in ways)), None)", "if not ways), None)",
    ),
    slip(
        "a kernel that would not reflect is blamed for paths that disagree", "laws/test_coherent",
        "return weight if all(isinstance(sums_to_1(c, changed), Proved) for c in covers) else None", "return weight",
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
        "a sum is blamed on a kernel that has values", "laws/test_markov laws/test_reflecting laws/test_verify",
        'f = next((f for f in fibrations if not Claim(f.weight, self.at(f.source)).is_shown), None)',
        'f = next(iter(fibrations), None)',
    ),
    slip("causes are lost where verdicts are kept", "laws/test_verdict_cache", "cause=c and Cause(*c))", "cause=None)"),
    slip(
        "R(F(r)) is said to be r where that holds at r = 1 alone", "first_order",
        'return "R(F(r)) = r" if subject.proved("recovery") else', 'return "R(F(r)) = r" if subject.verdicts else',
    ),
    slip(
        "a weight need only have a limit", "laws/test_agreement",
        "return all(ends and all(vanishes(e - 1) for e in ends) for ends in found)",
        "return all(ends and all(vanishes(e - ends[0]) for e in ends) for ends in found)",
    ),
    slip(
        "a mask that may hold is open", "laws/test_agreement",
        "if all(here.outcomes(keep.condition) == {True}", "if all(True in (here.outcomes(keep.condition) or ())",
    ),
    slip(
        "a weight may be negative", "laws/test_agreement",
        'name, written, read, NOT_NEGATIVE', 'name, written, read, ANY',
    ),
    slip(
        "a gate that stays still agrees to first order", "laws/test_agreement",
        "if is_one(subject) and has_slope_one(subject, still=True):", "if is_one(subject) and has_slope_one(subject):",
    ),
    slip(
        "statistics of domains are known row by row", "laws/test_facts_weights",
        "return place != h.rows and h.rows not in shape.coarser(place)", "return place == Stratum(BATCH)",
    ),
)  # fmt: skip
