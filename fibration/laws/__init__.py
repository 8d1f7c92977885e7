"""The laws of a fibration gating hierarchy , which must hold for all sizes at once; one short file per subject.

A law is a statement, a decision procedure and a counterexample search. `LAWS` is their order: foundations first, then
kernels, decomposition, gates, and what follows from them together.
"""

from __future__ import annotations

from fibration.laws import (
    coherent,
    first_order,
    kernels,
    locality,
    objective,
    orthogonality,
    outcome,
    recovery,
    reference,
    structure,
)
from fibration.laws.law import Law
from fibration.spec import CAN_BE_GIVEN_UP, FOUNDATIONS

_FOUNDATIONS = (structure.LAW, locality.LAW, *kernels.LAWS, coherent.LAW, objective.LAW)
_CONSEQUENCES = (recovery.LAW, reference.LAW, first_order.LAW, orthogonality.LAW, *outcome.LAWS)
LAWS: dict[str, Law] = {law.name: law for law in (*_FOUNDATIONS, *_CONSEQUENCES)}

if {n for n, law in LAWS.items() if law.may_be_given_up} != set(
    CAN_BE_GIVEN_UP
) or LAWS.keys() - CAN_BE_GIVEN_UP != set(FOUNDATIONS):
    raise AssertionError("fibration.spec and fibration.laws name different laws")
