"""Random hierarchies with any part of the language: quivers, groups, gates, kernels, decompositions, odd constants.

Most have only one or two random parts, so that no law stops at a failed foundation and every law is fully decided.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from fibration import (
    Attribute,
    Fibration,
    Gate,
    Hierarchy,
    MarkovKernel,
    Objective,
    Parameter,
    Penalty,
    absolute,
    advantage,
    after,
    aggregate_gate,
    atan,
    balanced,
    before,
    centred,
    channel_sign,
    clip,
    clip_gate,
    count,
    decomposition,
    density,
    dual_clip_gate,
    exp,
    expm1,
    gated,
    identity_gate,
    log,
    log_clip_gate,
    log_prob,
    log_ratio,
    mass,
    mean,
    pessimistic_clip_gate,
    populated,
    proportional,
    pull,
    ratio_deviation,
    residual,
    reward,
    sigmoid,
    signed_log_ratio,
    sqrt,
    standardised,
    stop,
    strata,
    tanh,
    token_mean,
    total,
    trajectory_mean,
    uniform,
    where,
    zero_gate,
)
from fibration.errors import FibrationError
from fibration.language.atoms import Stratum
from fibration.language.expressions import Expression, as_expression
from fibration.language.outline import whole_batch
from fibration.language.strata import Shape
from fuzz.generate import (
    PARAMETERS,
    SETTINGS,
    Formulas,
    Setting,
    batch,
    current,
    domain,
    image,
    old,
    prompt_group,
    reference,
    rollout,
    text,
    token,
    trajectory,
    turn,
    x,
)

modality, expert = strata("modality expert")
_both = MarkovKernel(1 / (count(text, over=turn) + count(image, over=turn)))
_rows, _tokens = proportional(count(trajectory)), proportional(count(token))
QUIVERS = (
    Setting("crossed rows", (token,), (
        Fibration(token, trajectory, kernel=uniform()), Fibration(trajectory, domain, kernel=uniform()),
        Fibration(trajectory, modality, kernel=uniform()), Fibration(domain, batch, kernel=_rows), Fibration(modality, batch, kernel=_rows),
    ), (prompt_group,)),
    Setting("balanced rows", (token,), (
        Fibration(token, trajectory, kernel=uniform()), Fibration(trajectory, domain, kernel=uniform()),
        Fibration(trajectory, modality, kernel=uniform()), Fibration(domain, batch, kernel=_rows), Fibration(modality, batch, kernel=_rows),
    ), (), (balanced(domain, modality),)),
    Setting("experts", (token,), (
        Fibration(token, trajectory, kernel=uniform()), Fibration(token, expert, kernel=uniform()),
        Fibration(trajectory, batch, kernel=_tokens), Fibration(expert, batch, kernel=_tokens),
    ), (prompt_group,)),
)  # fmt: skip
TREES = (
    Setting("turns of two kinds", (text, image), (
        Fibration(text, turn, kernel=_both), Fibration(image, turn, kernel=_both), Fibration(turn, trajectory, kernel=uniform()),
    ), (prompt_group, domain)),
    Setting("shares", (text, image), (
        Fibration(text, trajectory, kernel=uniform(Fraction(1, 3))), Fibration(image, trajectory, kernel=uniform(Fraction(2, 3))),
    ), (), (populated(text, over=trajectory), populated(image, over=trajectory))),
)  # fmt: skip
MORE = (
    *PARAMETERS,
    Parameter("free", lower=None),
    Parameter("huge", lower=0, upper=1e12),
    Parameter("odd", per_channel=True),
)
CONSTANTS = (0, 1, -1, 2, 3, 0.2, 1e-12, 1e12, 2**70, Fraction(1, 3), -0.3, 100, 0.999)
ODD = (sqrt(2), exp(-1), sigmoid(2), log(3), tanh(Fraction(1, 2)), atan(1), expm1(1))
RANGES: tuple[dict[str, Any], ...] = (
    {}, {"positive": False}, {"positive": False, "lower": -1, "upper": 1}, {"lower": 0.5, "upper": 2}, {"positive": False, "upper": 3},
)  # fmt: skip


@dataclass
class Anything(Formulas):
    """As `Formulas`; `own` is what a formula may read beside, such as `residual` in a gate."""

    own: tuple[Any, ...] = field(default=())
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        self.shape = whole_batch(self.hierarchy())

    def constant(self) -> Expression:
        roll = self.rng.random()
        if roll < 0.3:
            return self.pick(*(p for p in MORE if self.own or not p.per_channel))
        return self.pick(*ODD) if roll < 0.45 else as_expression(self.pick(*CONSTANTS))

    def atom(self, place: Stratum | None, gathered: int) -> Expression:
        roll = self.rng.random()
        if self.own and roll < 0.45:
            return self.pick(*self.own)
        if place is not None and roll < 0.7:
            return self.measure(place)
        return super().atom(place, gathered)

    def of_group(self, place: Stratum) -> Expression:
        return self.measure(place)

    def statistic(self, place: Stratum | None, gathered: int, kind: str | None = None) -> Expression:
        if self.own:
            return replace(self, own=()).statistic(place, gathered, kind)
        return super().statistic(place, gathered, kind)

    def measure(self, place: Stratum) -> Expression:
        """A count, a total or an attribute at an element, or at one that it lies over."""
        over = self.pick(place, *self.shape.coarser(place))
        if self.own and over == batch and batch not in self.setting.strata:
            over = place
        inside = [s for s in (over, *self.shape.finer(over)) if s != batch]
        of = self.pick(*(inside or [over]))
        if self.rng.random() < 0.7 or of == batch:
            return count(of, over=over)
        a = Attribute(f"at_{of}", on=of, **RANGES[len(of.name) % len(RANGES)])
        return self.pick(total(a, over=over), a if of == over else total(a, over=over))

    def bound(self, place: Stratum) -> Expression:
        return self.pick(*MORE[:2], MORE[-1], as_expression(self.pick(0.2, 1, Fraction(1, 3))), 1 / self.measure(place))

    # ------------------------------------------------------------ parts of a hierarchy

    def gate_on(self, s: Stratum) -> Any:
        s_over = self.shape.coarser(s)
        has_one = s == trajectory or trajectory in s_over  # an advantage
        reads: list[Any] = [residual, residual, residual, mass, pull, channel_sign]
        reads += [advantage] if has_one else []
        reads += [density(u) for u in s_over if u in self.setting.strata]
        reads += [log_prob(old)] if s in self.setting.leaves else []
        f = replace(self, own=tuple(reads), moving=False, with_advantage=False)
        b = f.bound(s)
        named = [clip_gate(b), aggregate_gate(b, f.measure(s)), zero_gate()]
        named += [pessimistic_clip_gate(b, b), log_clip_gate(b, b), dual_clip_gate(b, b, MORE[1])] if has_one else []
        place = None if s == token else s
        e = f.number(self.rng.randrange(3), place, self.pick(0, 0, 1))
        c = f.condition(self.rng.randrange(2), place, self.pick(0, 0, 1))
        written = [
            e, residual + residual * residual * e, where(c, residual, e), residual / (1 + residual * residual * absolute(e)),
            clip(residual, -absolute(e), absolute(e)), where(c, residual, 2 * residual), stop(residual * e) + residual,
        ]  # fmt: skip
        made = self.pick(*named, *map(Gate, written))
        if self.rng.random() < 0.15:
            made = made.per(self.pick(mass, f.measure(s)))
        if self.rng.random() < 0.15:
            made = made.inward(**self.pick({}, {"ceiling": MORE[0]}, {"pull": Attribute("way", on=s, positive=False)}))
        return made

    def weight(self) -> Expression:
        e, c = self.number(self.rng.randrange(3)), self.condition(self.rng.randrange(2))
        return self.pick(e, absolute(e), exp(e), e**2, clip(e, 0, 2), where(c, 1, 2), where(c, absolute(e), 1))

    def split(self) -> Any:
        scale = self.pick(mass, mass, self.setting.scale, 1, replace(self, own=(mass,)).measure(self.setting.leaves[0]))
        g = gated("")
        own = replace(self, own=(x,), moving=False).number(1, self.setting.leaves[0], 0)
        back = replace(self, own=(g,), moving=False).number(1, self.setting.leaves[0], 0)
        return self.pick(
            log_ratio(scale=scale), signed_log_ratio(scale=scale), ratio_deviation(scale=scale),
            decomposition(density=tanh(x), recovery=sqrt((1 + g) / (1 - g))),
            decomposition(density=x + stop(before(x, over=trajectory)), recovery=exp(g)),
            decomposition(density=x / (1 + absolute(x)), recovery=exp(g / (1 - absolute(g)))),
            decomposition(density=own, recovery=exp(g)), decomposition(density=x, recovery=back), decomposition(density=atan(x), recovery=exp(g)),
        )  # fmt: skip

    def kernels(self) -> tuple[Fibration, ...]:
        found = list(self.setting.fibrations)
        if found:
            k = self.rng.randrange(len(found))
            source, target = found[k].source, found[k].target
            at_source = replace(self, own=(), moving=False, with_advantage=False).measure
            ours = Attribute("part", on=source)
            other = self.pick(
                uniform(),
                proportional(ours),
                proportional(count(source)),
                MarkovKernel(1 / at_source(target)),
                uniform(0.5),
            )
            found[k] = Fibration(
                source, target, kernel=self.pick(other, MarkovKernel(at_source(source) / at_source(target)))
            )
        return tuple(found)

    def advantages(self) -> Expression:
        f = replace(self, with_reward=True, moving=False)
        over = self.pick(batch, *self.setting.groups)
        return self.pick(
            centred(reward, over=over), centred(reward, over=over, leave_one_out=True), standardised(reward, over=over),
            reward - f.number(1), f.number(2), reward + after(reward, over=trajectory, discount=PARAMETERS[0]),
        )  # fmt: skip

    def penalty(self) -> Any:
        f = replace(self, with_advantage=False, passed=(rollout, reference))
        d = log_prob(current) - log_prob(reference)
        c = f.condition(self.rng.randrange(2))
        e = self.pick(
            d**2 / 2,
            exp(-d) - 1 + d,
            stop(exp(x)) * d,
            f.number(1) * d,
            where(c, d**2, -log_prob(current)),
            f.number(2),
        )
        if self.rng.random() < 0.5:
            return e
        own = Penalty(e, self.pick(trajectory_mean(), token_mean().keep(c)))
        return self.pick(own, Penalty(mean(e), over=self.pick(trajectory, *self.setting.groups)))

    def weight_of_rows(self) -> Objective:
        return Objective(1 / (1 + absolute(replace(self, own=()).measure(trajectory))))

    def whole(self) -> Hierarchy:
        """A hierarchy of which one or two parts are drawn, or all."""
        rng, s = self.rng, self.setting
        parts = ["gate", "gate", "gate", "weight", "keep", "advantages", "penalties", "objective", "split", "kernels"]
        chosen = set(rng.sample(parts, rng.choice([1, 1, 1, 2, 2, 9])))
        fields: dict[str, Any] = {"decomposition": log_ratio(scale=mass)}
        if "gate" in chosen:
            on = rng.choice(s.strata)
            fields["gates"] = {on: self.gate_on(on)}
        objective = self.weight_of_rows() if "objective" in chosen else self.objective()
        objective = objective.weigh(self.weight()) if "weight" in chosen else objective
        if "keep" in chosen:
            objective = objective.keep(self.condition(rng.randrange(1, 3)), rng.choice(["all", "kept"]))
        fields["objective"] = objective.score() if rng.random() < 0.05 else objective
        if "split" in chosen:
            fields["decomposition"] = self.split()
        elif rng.random() < 0.3:
            fields["decomposition"] = rng.choice([signed_log_ratio(scale=mass), ratio_deviation(scale=mass)])
        if "gate" in chosen and fields["decomposition"].channels != ("",) and rng.random() < 0.3:
            on = rng.choice(s.strata)
            fields["gates"] = {on: {"+": self.gate_on(on), "-": self.gate_on(on)}}
        if "kernels" in chosen:
            fields["fibrations"] = self.kernels()
        if "advantages" in chosen:
            fields["advantages"] = self.advantages()
        if "penalties" in chosen:
            fields["penalties"] = {f"term{k}": self.penalty() for k in range(rng.choice([1, 1, 2]))}
        if rng.random() < 0.2:
            fields["gives_up"] = dict.fromkeys(
                rng.sample(["first_order", "identity", "inward", "causal", "gradient"], 2), "drawn"
            )
        if any(self.shape.crossings()) and rng.random() < 0.2:
            fields["orthogonalise"] = "projection"
        return self.hierarchy(**fields)


def whole(rng: random.Random, settings: tuple[Setting, ...] = (*SETTINGS, *QUIVERS, *TREES)) -> Hierarchy:
    """A hierarchy in which anything may occur; FibrationError for what cannot be read."""
    return Anything(rng.choice(settings), rng).whole()


def changed(h: Hierarchy, rng: random.Random) -> Hierarchy:
    """A hierarchy with one of its formulas changed in one place."""
    names = dict.fromkeys(s.name for s in h.strata)
    s = next(s for s in (*SETTINGS, *QUIVERS, *TREES) if dict.fromkeys(t.name for t in s.strata) == names)
    f = Anything(s, rng)
    for _ in range(20):
        try:
            change: Mapping[str, Any] = rng.choice(
                [
                    lambda: {"objective": h.objective.weigh(f.weight())},
                    lambda: {"objective": h.objective.keep(f.condition(1))},
                    lambda: {"penalties": {**h.penalties, "another": f.penalty()}},
                    lambda: {"gates": {**h.gates, (g := rng.choice(s.strata)): Gate(f.mutated(h.gate(g)))}},
                    lambda: {"gates": {**h.gates, (g := rng.choice(s.strata)): f.gate_on(g)}},
                    lambda: {"gates": {**h.gates, rng.choice(s.strata): identity_gate()}},
                    lambda: {"decomposition": f.split()},
                ]
            )()
            return h.replace(**change)
        except FibrationError:
            continue
    return h
