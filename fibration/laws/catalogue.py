"""The laws by name, in the order in which `verify` decides them."""

from __future__ import annotations

from fibration.language.hierarchy import CAN_BE_GIVEN_UP, FOUNDATIONS
from fibration.laws import locality, structure
from fibration.laws.gates import recovery
from fibration.laws.kernels import coherent, orthogonality, reflecting
from fibration.laws.law import Law
from fibration.laws.objectives import baseline, kl_gradient, objective
from fibration.laws.off_policy import inward, positivity
from fibration.laws.on_policy import first_order, gradient, identity

_ORDER = (
    structure.LAW, locality.LAW, reflecting.LAW_OF_SIGNS, reflecting.LAW, coherent.LAW, objective.LAW,
    recovery.LAW, identity.LAW, first_order.LAW, gradient.LAW, objective.LAW_OF_AGREEMENT, objective.LAW_OF_MASKS,
    objective.LAW_OF_PREFIXES, baseline.LAW, kl_gradient.LAW, orthogonality.LAW, positivity.LAW, inward.LAW,
)  # fmt: skip
LAWS: dict[str, Law] = {law.name: law for law in _ORDER}
OURS = tuple(LAWS.items())  # results of a replaced or wrapped law are not cached

if {n: law.may_be_given_up for n, law in LAWS.items()} != {
    n: n in CAN_BE_GIVEN_UP for n in FOUNDATIONS + CAN_BE_GIVEN_UP
}:
    raise AssertionError("fibration.language.hierarchy and fibration.laws name different laws")
