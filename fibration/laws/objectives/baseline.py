"""Baselines: an advantage is the reward from the token on, less a baseline that does not read what was sampled there.

Then the expected update is the gradient of the expected reward, times a factor. The baseline may read everything else:
other rows, earlier tokens, a critic's values. If the token's own reward enters beyond a fixed share, as in a division
by a deviation, the gradient is another one, however many samples are drawn.
"""

from __future__ import annotations

from collections.abc import Iterator

from fibration.language.atoms import BATCH, Summary, at
from fibration.language.hierarchy import Hierarchy
from fibration.language.places import whole_batch
from fibration.language.statistics import atoms_within
from fibration.language.sympy_bridge import show
from fibration.language.traversal import desugar
from fibration.laws.law import Decision, Law, following, proved, unproved
from fibration.laws.objectives.baseline_search import not_its_own, raised
from fibration.laws.objectives.one_other_reward import rises
from fibration.laws.objectives.own_reward import multiple, of_tokens, rises_onward
from fibration.laws.objectives.samples import Samples
from fibration.laws.subject import Subject

STATEMENT = (
    "an advantage is the reward from the token on, less what does not depend on what was sampled there, times "
    "κ: A = κ·(R - b). κ is given, the same at all tokens of a row, nowhere below 0, above 0 where rows are compared"
)
REMEDY = (
    "take off what is not of its own sample: centred(reward, over={group}, leave_one_out=True), or an attribute; "
    "divide by no statistic of rewards, multiply by nothing that changes along a row; or gives_up={{'baseline': 'why'}}"
)

WEAKER = (
    "where all other rewards are alike, and so is everything else: a reward above the others gives no less advantage "
    "than the same reward, one below gives no more, and they do not all give the same"
)
REMEDY_OF_WEAKER = "let the advantage rise with reward, as reward - b does, or (reward - b)/s with s above 0"


def decide_baseline(subject: Subject) -> Iterator[Decision]:
    h = subject.hierarchy
    if h.advantages is not None:
        yield _decided(subject, h)


def _decided(subject: Subject, h: Hierarchy) -> Decision:
    assert h.advantages is not None
    formula = at(h.advantages, h.leaves[0])
    if (found := multiple(h, formula)) is not None:
        of = "the rewards from the token on" if of_tokens(h, formula) else "the reward of its row"
        of += ", with what is added of its own sample" if found.adds else ""
        granted = Samples(h).granted(formula)
        share = "A = R - b" if found.kappa == 1 else f"A = κ·(R - b), κ = {show(found.kappa)}"
        share += "" if found.everywhere else ", which is above 0 where rows are compared with others"
        return proved("advantages", f"{share}, R {of}, and b is of nothing that was sampled there{granted}")
    witness = not_its_own(h, desugar(formula), of_tokens(h, formula))
    unknown = "" if witness else ", which was not shown to be a reward less a baseline"
    decision = unproved("advantages", f"A = {h.advantages}{unknown}", REMEDY.format(group=_compared(h)), witness)
    return following(decision, subject.failure("objective", "advantages"))


def _compared(h: Hierarchy) -> str:
    """The stratum over which the advantages compare rows."""
    assert h.advantages is not None
    coarser = whole_batch(h).coarser(h.rows)
    return next((str(a.over) for a in atoms_within(h.advantages, Summary) if a.over in coarser), BATCH)


def remainder(subject: Subject) -> Iterator[Decision]:
    """Decides what is left of the law if it is given up: an advantage rises with its own reward.

    A reward above or below the others is compared with an equal reward; two rewards above are not compared.
    """
    h = subject.hierarchy
    if h.advantages is None:
        return
    formula = at(h.advantages, h.leaves[0])
    rising = rises_onward(h, formula) or (None if of_tokens(h, formula) else rises(h, formula))
    steps = raised(h, desugar(formula))
    if rising:
        found = next((w for step, w in steps if step > 0), None)
        if found is not None:
            yield proved("advantages", f"{WEAKER}: {found}")
            return
    wrong = next((w for step, w in steps if step < 0 or (rising is False and not step)), None)
    yield unproved("advantages", f"A = {h.advantages}", REMEDY_OF_WEAKER, wrong, required=WEAKER)


LAW = Law("baseline", STATEMENT, decide_baseline, remainder=remainder)
