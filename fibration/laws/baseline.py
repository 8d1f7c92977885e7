"""Baselines: an advantage is the reward from the token on, less what does not depend on what was sampled there.

Then its expected update is the gradient of the expected reward, times a factor. What is taken off may read everything
else: other rows, what came before, a critic's values. What its own reward has a part in, beyond a fixed share, has
another gradient, which no number of samples mends: so has what divides by a deviation.
"""

from __future__ import annotations

from collections.abc import Iterator

from fibration.language.atoms import at
from fibration.language.hierarchy import Hierarchy
from fibration.language.places import whole_batch
from fibration.language.sympy_bridge import show
from fibration.language.traversal import desugar
from fibration.laws.law import Decision, Law, following, proved, unproved
from fibration.laws.proof.baselines import factor, of_tokens
from fibration.laws.proof.samples import Samples
from fibration.laws.proof.signs import Assumptions
from fibration.laws.proof.subject import Subject
from fibration.laws.witness.compared import not_its_own

STATEMENT = (
    "an advantage is the reward from the token on, less what does not depend on what was sampled there, times a factor "
    "of counts: A = κ·(R - b), κ > 0"
)
REMEDY = (
    "take off what is not of its own sample: centred(reward, over=prompt_group, leave_one_out=True), or an attribute; "
    "divide by no statistic of rewards; or gives_up={'baseline': 'why'}"
)


def decide_baseline(subject: Subject) -> Iterator[Decision]:
    h = subject.hierarchy
    if h.advantages is not None:
        yield _decided(subject, h)


def _decided(subject: Subject, h: Hierarchy) -> Decision:
    assert h.advantages is not None
    formula = at(h.advantages, h.leaves[0])
    found = factor(h, formula)
    known = Assumptions(whole_batch(h), h.assume, h.leaves[0])
    if found is not None and known.signs(found[0]) <= {0, 1}:
        kappa, more = found
        of = "the rewards from the token on" if of_tokens(h, formula) else "the reward of its row"
        of += ", with what is added of its own sample" if more else ""
        granted = Samples(h).granted(formula)
        share = "A = R - b" if kappa == 1 else f"A = κ·(R - b), κ = {show(kappa)}"
        return proved("advantages", f"{share}, R {of}, and b is of nothing that was sampled there{granted}")
    witness = not_its_own(h, desugar(formula), of_tokens(h, formula))
    unknown = "" if witness else ", which was not shown to be a reward less a baseline"
    said = (v for v in subject.verdicts if (v.law, v.subject) == ("objective", "advantages") and v.status != "proved")
    return following(unproved("advantages", f"A = {h.advantages}{unknown}", REMEDY, witness), next(said, None))


LAW = Law("baseline", STATEMENT, decide_baseline)
