"""The laws of a fibration gating hierarchy, which must hold for all sizes at once: one file per law, named after it.

A law is a statement, a decision procedure and a search for a counterexample. `proof/` decides for all sizes, by sympy
on branch-free formulas; `witness/` evaluates small hierarchies exactly. `verify.py` asks the laws in the order of
`LAWS`: foundations first, then kernels, decomposition, gates, and what follows from them together; `facts.py`
certifies what no law asks, and `kept.py` keeps verdicts and facts.

May import: `errors`, `cache`, `language`.
"""

from __future__ import annotations

from fibration.language.hierarchy import CAN_BE_GIVEN_UP, FOUNDATIONS
from fibration.laws import (
    agreement,
    baseline,
    causal,
    coherent,
    first_order,
    gradient,
    identity,
    inward,
    kl_gradient,
    locality,
    markov,
    mask_open,
    objective,
    orthogonality,
    positivity,
    recovery,
    reflecting,
    structure,
)
from fibration.laws.law import Law

_FOUNDATIONS = (structure, locality, markov, reflecting, coherent, objective)
_CONSEQUENCES = (
    recovery, identity, first_order, gradient, agreement, mask_open, causal, baseline, kl_gradient, orthogonality,
    positivity, inward,
)  # fmt: skip
LAWS: dict[str, Law] = {module.LAW.name: module.LAW for module in (*_FOUNDATIONS, *_CONSEQUENCES)}

if {n: law.may_be_given_up for n, law in LAWS.items()} != {
    n: n in CAN_BE_GIVEN_UP for n in FOUNDATIONS + CAN_BE_GIVEN_UP
}:
    raise AssertionError("fibration.language.hierarchy and fibration.laws name different laws")
