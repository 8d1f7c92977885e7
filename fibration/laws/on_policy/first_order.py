"""First-order agreement (thm:fbg_first_order): near on-policy `𝒢(r) = r`, so that value and gradient are the true ones.

The proof is the first of three arguments that works: every gate is the identity near 0; every gate has value 0 and
slope 1 there; the gates of all levels together add up to the leaf's density (`expansion.py`). If value and gradient do
not both agree, a second verdict may prove that they agree for advantages that are constant on a stratum (GSPO).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import sympy

from fibration.errors import an
from fibration.language.atoms import BATCH, Stratum, advantage
from fibration.language.hierarchy import Hierarchy, gates
from fibration.language.operators import Signs
from fibration.language.outline import home, whole_batch
from fibration.language.report import Verdict
from fibration.language.sympy_bridge import cancelled, from_sympy, to_sympy, vanishes
from fibration.laws import topic
from fibration.laws.batches import first_update
from fibration.laws.batches.concrete import Witness
from fibration.laws.gates.coordinates import composed
from fibration.laws.gates.recovery import inverted
from fibration.laws.kernels.orthogonality import LAW as ORTHOGONALITY
from fibration.laws.law import Decision, Law, following, proved, refuted, unproved
from fibration.laws.on_policy import expansion
from fibration.laws.signs.branches import merged
from fibration.laws.subject import Subject

START = "R(F(r)) = r to first order at r = 1, where every first update starts: value 1, slope 1"
STATEMENT = "near on-policy 𝒢(r) = r to first order, so that value and gradient are those of the true objective"


def decide_first_order(subject: Subject) -> Iterator[Decision]:
    if subject.hierarchy.objective.estimator == "score":
        # the gradient of `Σ μ·stop(𝒢)·A·log π` may be that of `J`, but its value is not `J`
        found = "the value of a score estimator is Σ μ·𝒢·A·log π, not J"
        advice = "a score estimator is meant for its gradient: gives_up={'first_order': 'the value is not J'}"
        two = "one token with log π = -1 and advantage 1 has the value -μ·𝒢(1) on policy, and with log π = -2 another"
        yield refuted("hierarchy", found, advice, Witness(two, None, {"log_prob": -1, "advantage": 1}))
        return
    failure = _failure(subject)
    argument = _gate_by_gate(subject) if failure is None else _together(subject, failure)
    if argument:
        yield wrong_start(subject) or proved("hierarchy", argument)
        return
    found = f"{failure.subject} fails '{failure.law}'" if failure else f"R = {subject.hierarchy.decomposition.recovery}"
    remedy = failure.remedy if failure else inverted(subject.hierarchy)
    yield following(unproved("hierarchy", found, remedy, _felt(subject, failure)), failure)
    coarse = subspace(subject)
    if coarse is not None:
        span = _span(subject.hierarchy, coarse)
        what = f"{span} near 0, finer residuals sum to 0 over {an(coarse)}, and μ·R' has one value there"
        yield proved(constant_on(coarse), what)


def constant_on(coarse: Stratum) -> str:
    """The subject of a verdict on advantages that are constant on each element of a stratum."""
    return f"advantages constant on each {coarse}"


def wrong_start(subject: Subject, held: bool = False) -> Decision | None:
    """The verdict if `R∘F` is not the identity to first order at `r = 1`; None if it is.

    `held`: sums before or after a token may add a stopped value.
    """
    h = subject.hierarchy
    leaf, side = next(expansion.wrong_starts(subject, held), (None, 0))
    if leaf is None:
        return None
    wholes = {leaf: composed(h, leaf) for leaf in h.leaves}
    found = (w for leaf, whole in wholes.items() if (w := first_update.start_not_recovered(h, leaf, whole)))
    witness = next(found, None) or (first_update.wrong_coefficients(h) if expansion.reads_order(h) else None)
    owner = "" if side else "one channel alone has x = 0, as where(token_log_ratio >= 0, ...) and its negation: "
    return unproved("decomposition", f"R(F(r)) = {wholes[leaf]}", inverted(h, owner), witness, START)


def _failure(subject: Subject) -> Verdict | None:
    """The first failed law that agreement rests on; recovery counts only if it fails beside `r = 1`."""
    recovery = None if expansion.recovers(subject) else subject.first_failure("recovery")
    # residuals add up to densities whatever the weights of kernels are, as long as they have values
    kernel = subject.kernel_without_a_value(*subject.hierarchy.fibrations)
    return recovery or subject.first_failure("identity") or kernel


# ---------------------------------------------------------------- proofs


def _gate_by_gate(subject: Subject) -> str | None:
    exact = all(subject.germ(g, s).passes for s, _, g in gates(subject.hierarchy))
    if not exact and not expansion.is_smooth(subject):
        return None
    near = "is the identity near 0" if exact else "has value 0 and slope 1 at 0"
    several = f"every gate {near}, a token's residuals on all levels add up to its density σ"
    return f"{several if len(subject.hierarchy.order) > 1 else f'the gate {near}'}, and {_back(subject)}"


def _back(subject: Subject) -> str:
    return "R(F(r)) = r" if subject.proved("recovery") else "R(F(r)) has value 1 and slope 1 at r = 1"


def _together(subject: Subject, failure: Verdict) -> str | None:
    """The argument that the gates of all levels add up, although one is not the identity; None if there is none."""
    found = expansion.together(subject) if failure.law == "identity" and expansion.recovers(subject) else None
    if found is None:
        return None
    other = [m for _, meetings in found for m in meetings if not vanishes(m.difference)]
    if not other or (all(vanishes(m.value) and m.is_still for m in other) and expansion.is_smooth(subject)):
        return f"{_added_up(subject, 'add up, to first order, to' if other else 'add up to')}, and {_back(subject)}"
    if expansion.is_one(subject) and expansion.has_slope_one(subject, still=True):
        return "𝒢(1) = 1 and 𝒢'(1) = 1: what the gates add at r = 1 cancels in R"
    return None


def _added_up(subject: Subject, word: str) -> str:
    """That the gates of all levels add up to the density of every leaf, in words."""
    h = subject.hierarchy
    leaf = " and ".join(s.name for s in h.leaves)
    each = "the" if len(h.leaves) == 1 else "each"
    shown = expansion.Stack(subject, h.leaves[0], h.decomposition.channels[0]).shown() if len(h.leaves) == 1 else ""
    if "+" in h.decomposition.channels:
        shown = shown.replace(', "+")', ")").replace("[+]", "")  # the other channel differs in nothing else
    what = f"near on-policy the gates are {shown}, which" if shown else "near on-policy the gates of all levels"
    return f"{what} {word} {each} {leaf}'s own density"


# ---------------------------------------------------------------- refutations


def _felt(subject: Subject, failure: Verdict | None) -> Witness | None:
    """A witness against the operator, or None. A gate's own may not be enough: gates may compensate each other."""
    own = failure.counterexample if failure else None
    if expansion.reads_order(subject.hierarchy):
        return first_update.off_policy(subject.hierarchy)
    if failure and (failure.law != "identity" or not isinstance(own, Witness)):
        return None
    if not (expansion.recovers(subject) and (subject.proved("reflecting") or not subject.hierarchy.fibrations)):
        return None
    if isinstance(own, Witness) and subject.hierarchy.shape.is_chain and _is_felt(subject, own):
        return own
    return first_update.off_policy(subject.hierarchy) if expansion.usable(subject) else None


def _is_felt(subject: Subject, own: Witness) -> bool:
    """Whether a witness against one gate of a chain refutes the operator too.

    A wrong slope does: if that gate's residuals move alone, every other gate passes or adds nothing. A wrong value
    does, unless another gate or the other channel cancels it.
    """
    h, values = subject.hierarchy, own.values
    wrong = {s.name for s, _, g in gates(h) if not subject.germ(g, s).value_ok}
    if values["part"] == "slope":
        return not wrong
    return wrong <= {values["stratum"]} and not values["densities"] and h.decomposition.channels == ("",)


# ---------------------------------------------------------------- on a subspace


def _span(h: Hierarchy, coarse: Stratum) -> str:
    """The gates that must be the identity, in words."""
    kept = [s for s in h.order if s not in h.shape.finer(coarse)]
    if len(kept) == 1:
        return f"the gate on {coarse} is the identity"
    if h.shape.is_chain:
        return f"the gates from {kept[0]} to {coarse} are the identity"
    return f"the gates on {', '.join(s.name for s in kept[:-1])} and {kept[-1]} are the identity"


def subspace(subject: Subject) -> Stratum | None:
    """The finest stratum for whose constant advantages first-order agreement holds; None if none was found.

    Every finer level must have `Σ μ_i A_i R'_i (K h(ρ))_i = c·A·μ·R'·Σ ρ = 0` over each element of the stratum. So on
    each element the level's gate must have one slope `c`, and `μ R'` one value. All other gates, also on strata that
    cross this one, must be the identity.
    """
    h, shape = subject.hierarchy, subject.hierarchy.shape
    if not subject.proved("reflecting") or any(expansion.wrong_starts(subject)):
        return None
    if any(v.law == "identity" and v.subject == "reference" for v in subject.verdicts):
        return None
    germs = {(s, channel): subject.germ(gate, s) for s, channel, gate in gates(h)}
    wrong = {s for (s, _), germ in germs.items() if not (germ.value_ok and germ.slope_ok)}
    below_all = (s for s in reversed(h.order) if shape.above(s) and shape.leaves_over(s) == set(h.leaves))
    good = next((s for s in below_all if wrong <= set(shape.finer(s))), None)
    if good is None or not (shape.is_tree or expansion.usable(subject)):
        return None
    # the residuals of finer strata sum to 0 over each element: on a tree, by the law of reflection
    found = {} if shape.is_tree else {v.subject: v.status for v in ORTHOGONALITY.decide(subject)}
    if not all(shape.is_tree or found.get(topic.residual(s)) == "proved" for s in shape.finer(good)):
        return None
    # by gate, or gates whose residuals sum to 0 only together: slopes, with conditions on a whole element
    alike: dict[object, list[tuple[dict[Any, Signs], Any]]] = {}
    for (stratum, channel), germ in germs.items():
        if stratum in shape.finer(good):
            if not germ.value_ok or germ.slopes is None:
                return None
            slopes = [({d: v for d, v in held if is_constant(h, d, good)}, slope) for held, slope in germ.slopes]
            alike[stratum, channel] = slopes
            if shape.leaves_over(stratum) != set(h.leaves):  # such as the branches of a tree
                beside = shape.below(stratum)[0].target if shape.is_tree else None
                alike[beside] = [*alike.get(beside, ()), *slopes]
    weight, shares = to_sympy(h.objective.spelled_out(h.leaves, h.rows)), []
    for leaf in h.leaves:
        if (known := expansion.back_at_0(subject, leaf)) is None:
            return None
        shares.append([weight * slope for slope in known[1 : 1 + len(h.decomposition.channels)]])
    fixed = [slope for slopes in alike.values() for _, slope in slopes] + [share for leaf in shares for share in leaf]
    is_one_share = all(vanishes(a - b) for leaf in shares for a, b in zip(leaf, shares[0], strict=True))
    finite = not any(value.has(sympy.zoo, sympy.nan, sympy.oo) for value in fixed)
    # slopes that can occur on one element are equal
    pairs = (pair for slopes in alike.values() for pair in itertools.combinations(slopes, 2))
    is_one_slope = all(vanishes(s - t) for (held, s), (other, t) in pairs if merged(held, other) is not None)
    return good if is_one_share and finite and is_one_slope and all(is_constant(h, v, good) for v in fixed) else None


def is_constant(h: Hierarchy, value: Any, stratum: Stratum) -> bool:
    """Whether a value is constant on each element of a stratum, as the advantage is assumed to be."""
    allowed = {s.name for s in (stratum, *whole_batch(h).coarser(stratum))} | {BATCH}
    read = (from_sympy(s) for s in cancelled(sympy.together(value)).free_symbols)
    return all(atom == advantage or home(h, atom) in allowed for atom in read)


LAW = Law("first_order", STATEMENT, decide_first_order)
