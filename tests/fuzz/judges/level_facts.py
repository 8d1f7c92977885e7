"""Facts against brute force: of levels `share`, `idle` and `spill`, and `blocks`, `normaliser`, `radius` and `bounds`.

What a level adds to a coefficient is its definition: the coefficient if the gradient flows through that level's gate
alone, or through the gate of one of its elements.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from hierarchies import random_quivers
from oracles.fact_text import interval, number

import fibration
from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    Objective,
    advantage,
    aggregate_gate,
    clip_gate,
    constant_normaliser,
    count,
    density,
    identity_gate,
    log_ratio,
    mass,
    proportional,
    ratio_deviation,
    residual,
    signed_log_ratio,
    tanh,
    token_mean,
    trajectory_mean,
    uniform,
    zero_gate,
)
from fibration.errors import FibrationError
from fibration.language.atoms import Component, Gated, Stratum
from fibration.language.expressions import Expression, as_expression
from fibration.language.hierarchy import FOUNDATIONS
from fibration.language.outline import whole_batch
from fibration.language.report import Fact
from fibration.laws import LAWS
from fibration.laws.budget import Budget
from fibration.laws.facts.certified import facts
from fibration.laws.subject import Subject
from fibration.laws.values.numerals import plural
from fuzz.batches import Batches
from fuzz.dual_numbers import Dual, slopes_of, value_of
from fuzz.generate import PARAMETERS, SETTINGS, Setting, domain, prompt_group, token, trajectory, turn
from fuzz.judges.judge import TOLERANCE, NothingDrawn, OfHierarchy, attempt, of_batch, proofs_alone
from fuzz.random_hierarchies import QUIVERS, TREES
from fuzz.world import Batch, World

BESIDE = (  # rows are no level
    Setting("turns alone", (token,), (Fibration(token, turn, kernel=uniform()),)),
    Setting("groups of tokens", (token,), (Fibration(token, prompt_group, kernel=uniform()),)),
    Setting("turns of groups", (token,), (
        Fibration(token, turn, kernel=uniform()), Fibration(turn, prompt_group, kernel=uniform()),
        Fibration(prompt_group, domain, kernel=proportional(count(turn))),
    )),
)  # fmt: skip
# what the facts rest on, beside the foundations
ASKED = ("recovery", "identity", "first_order", "positivity", "agreement", "mask_open")
TOWERS = tuple(s for s in (*SETTINGS, *QUIVERS, *TREES, *BESIDE) if s.fibrations)


def found_facts(h: Hierarchy, names: tuple[str, ...], laws: tuple[str, ...] = ASKED) -> list[Fact] | None:
    """Some facts alone, as `verify` gives them; None where a foundation fails."""
    subject, found = Subject(h, []), list[Fact]()

    def ask() -> None:
        for name in (*FOUNDATIONS, *laws):
            subject.verdicts.extend(LAWS[name].decide(subject))
            if name in FOUNDATIONS and subject.first_failure(name):
                return
        for name, some in facts(subject):
            if name in names:
                found.extend(some)

    with proofs_alone():
        Budget(20.0).allows(ask)
    return None if subject.first_failure(*FOUNDATIONS) else found


# ---------------------------------------------------------------- what a level adds


class OneGate(World):
    """A batch on which gradients flow through the gate of one level alone, or of one of its elements."""

    def __init__(self, h: Hierarchy, b: Batch, level: str, element: Any = None) -> None:
        super().__init__(h, b)
        self.gated = {  # type: ignore[misc]
            (s, c): {
                e: gated if s == level and element in (None, e) else value_of(gated) for e, gated in elements.items()
            }
            for (s, c), elements in self.gated.items()
        }


def added(h: Hierarchy, b: Batch, level: str, element: Any = None) -> list[Any]:
    return OneGate(h.replace(penalties={}), b, level, element).coefficients


def passed(h: Hierarchy, b: Batch, level: str) -> dict[str, dict[Any, Any]]:
    """`h'·Y` of every element, by channel, in extensive units."""
    world, found = World(h, b), dict[str, dict[Any, Any]]()
    mu, factors = world.mu(h.objective), world.factors(h.objective)
    for c in h.decomposition.channels:
        found[c] = {}
        for e, rho in world.residual[level, c].items():
            slope = slopes_of(world.gate(level, e, c, Dual(value_of(rho), {0: 1.0}))).get(0, 0)
            pull: Any = 0
            for i in world.over[level][e]:
                leaf = world.place(i)[0]
                down: dict[Any, Any] = {
                    Gated(k): sum(
                        world.kernel(leaf, i, s) * value_of(world.gated[s, k][world.below(leaf, i, s)])
                        for s in (leaf, *world.coarser[leaf])
                    )
                    for k in h.decomposition.channels
                }
                down[Gated(c)] = Dual(down[Gated(c)], {0: world.kernel(leaf, i, level)})
                back = slopes_of(world.value(h.with_mass(h.decomposition.recovery, Stratum(leaf)), leaf, i, down))
                pull += mu[i] * factors[i] * world.advantage(i) * back.get(0, 0)
            found[c][e] = slope * pull
    return found


def said(h: Hierarchy, b: Batch, level: str, text: str) -> list[Any]:
    """What a level adds by the formula of the fact `share`."""
    world, terms = World(h, b), re.findall(r"([+-]) (?:(\d+)·)?E\[h'·Y \| (\w+)\]", text)
    levels, found = passed(h, b, level), [0.0] * world.n
    for i in range(world.n):
        leaf = world.place(i)[0]
        for c, of_element in levels.items():
            part: Any = of_element[world.below(leaf, i, level)] if level in (leaf, *world.coarser[leaf]) else 0
            for sign, times, u in terms:
                if u in (leaf, *world.coarser[leaf]):
                    here = world.below(leaf, i, u)
                    each = (e for e in of_element if world.below(level, e, u) == here)
                    part += float(f"{sign}{times or 1}") * sum(world.kernel(level, e, u) * of_element[e] for e in each)
            split = h.with_mass(h.decomposition[c], Stratum(leaf))
            found[i] += part * slopes_of(world.value(split, leaf, i, flows="order")).get(i, 0)
    return found


def written(h: Hierarchy, text: str) -> Expression:
    """A formula of a fact."""
    strata = {s.name: s for s in (*whole_batch(h).strata, Stratum("batch"))}
    return as_expression(eval(text, vars(fibration) | strata | h.attributes | h.parameters))


def differs(found: list[Any], wanted: list[Any]) -> bool:
    size = max(1.0, *(abs(float(v)) for v in (*found, *wanted)))
    return any(abs(float(a - b)) > TOLERANCE * size for a, b in zip(found, wanted, strict=True))


def of_rows(h: Hierarchy, b: Batch) -> None:
    """Give every row one advantage."""
    own = dict(zip(b.labels[h.rows.name], b.advantages, strict=True))
    b.advantages = [own[r] for r in b.labels[h.rows.name]]


def centre(h: Hierarchy, b: Batch, over: str, text: str) -> None:
    """Advantages for which a level over a stratum is idle, by the words of the fact."""
    world = World(h, b)
    mu = [float(m) for m in world.mu(h.objective)]
    by_row = f"of the {plural(h.rows.name)} of" in text
    if by_row:
        of_rows(h, b)
    weight = {i: mu[i] if "Σ μ·A" in text else 1.0 for i in range(b.size)}
    for tokens in world.over[over].values():
        each = list({b.labels[h.rows.name][i]: i for i in tokens}.values()) if by_row else tokens
        if size := sum(weight[i] for i in each):
            middle = sum(weight[i] * float(b.advantages[i]) for i in each) / size
            for i in tokens:
                b.advantages[i] = float(b.advantages[i]) - middle  # type: ignore[call-overload]


def wrong_share(h: Hierarchy, f: Fact, draw: Batches) -> str:
    level = f.subject.removeprefix("gate on ")
    b = draw()
    if differs(got := added(h, b, level), expected := said(h, b, level, f.value)):
        return f"{f.value} is {expected}, and {level} adds {got} {of_batch(b)}"
    b = draw("exact")
    of_rows(h, b)
    if "on policy 0" in f.argument and differs(got := added(h, b, level), [0.0] * b.size):
        return f"{level} adds {got} on policy {of_batch(b)}"
    return ""


def wrong_idle(h: Hierarchy, f: Fact, draw: Batches) -> str:
    level = f.subject.removeprefix("gate on ")
    b = draw("exact" if "on policy" in f.value else None)
    centre(h, b, level, f.value)
    got = added(h, b, level)
    return f"{level} adds {got} {of_batch(b)}" if differs(got, [0.0] * b.size) else ""


def wrong_spill(h: Hierarchy, f: Fact, draw: Batches) -> str:
    """On policy, and in log ratios everywhere: siblings lose together what an element's own tokens gain."""
    level = f.subject.removeprefix("gate on ")
    b = draw("exact")
    world, share = World(h, b), written(h, f.value)
    for e in world.elements(level):
        each = added(h, b, level, e)
        own = sum(each[i] for i in world.over[level][e])
        others = sum(v for i, v in enumerate(each) if i not in world.over[level][e])
        if abs(own + others) > TOLERANCE * max(1, abs(own)):
            return f"{level} {e} gains {own}, its siblings {others} {of_batch(b)}"
        of_level = passed(h, b, level)
        scale = sum(
            value_of(world.value(h.masses[Stratum(world.place(i)[0])], *world.place(i))) for i in world.over[level][e]
        )
        pull = sum(v for c, found in of_level.items() for k, v in found.items() if k == e and c != "-") * scale
        rest = value_of(world.value(share, level, e)) * pull
        if abs(own - rest) > TOLERANCE * max(1, abs(rest)):
            return f"{level} {e} gains {own}, by the fact {rest} {of_batch(b)}"
    return ""


# ---------------------------------------------------------------- which tokens depend on which


def wrong_blocks(h: Hierarchy, f: Fact, draw: Batches) -> str:
    b = draw()
    world = World(h, b)
    said = re.sub("block-diagonal over |and over ", "", f.value).split()
    over = list(map(str, h.leaves)) if f.value == "diagonal" else said
    for i, ratio in enumerate(world.ratios if f.value != "one block" else ()):
        for j in (j for j, slope in slopes_of(ratio).items() if abs(slope) > TOLERANCE):  # thirds may not cancel whole
            labels = {s: {world.label[s][i], world.label[s][j]} for s in over}
            if apart := [s for s, e in labels.items() if None not in e and len(e) > 1]:
                return f"𝒢 of token {i} reads token {j} of another {apart[0]} {of_batch(b)}"
    return ""


def wrong_normaliser(h: Hierarchy, f: Fact, draw: Batches) -> str:
    if f.value != "nothing":
        return ""
    b = draw()
    world = World(h, b)
    whole = world.coefficients
    for tokens in world.over[h.rows.name].values():
        alone = world.of(tokens).coefficients
        if differs([whole[i] for i in tokens], alone):
            return f"tokens {tokens} alone have {alone} {of_batch(b)}"
    return ""


def wrong_weight(h: Hierarchy, f: Fact, draw: Batches) -> str:
    """What `μ` adds up to, over every stratum that the fact names."""
    if f.subject != "objective" or any(k.normaliser == "kept" for k in h.objective.kept):
        return ""
    b = draw()
    world, mu = World(h, b), World(h, b).mu(h.objective)
    said = re.split(r" per (\w+)(?:, |$)", f.value.partition(": ")[2] or f.value)
    for text, s in zip(said[::2], said[1::2], strict=False):
        formula = written(h, text)
        for e, tokens in world.over[s].items():
            if abs((own := sum(mu[i] for i in tokens)) - (wanted := value_of(world.value(formula, s, e)))) > TOLERANCE:
                return f"μ adds up to {own} over {s} {e}, and {text} is {wanted} {of_batch(b)}"
    return ""


# ---------------------------------------------------------------- how far gates let ratios go


def read(world: World, text: str, token: int, of: Callable[..., Any] = number) -> Any:
    """A bound as a fact prints it, or both of an interval, at one token."""
    values, h = dict[str, float](), world.h
    for p in h.parameters.values():
        if p.on is None or world.label[p.on.name][token] is not None:
            for c in "+-" if p.per_channel else ("",):
                atom = Component(p, c) if c else p
                values[f"{p.name}[{c}]" if c else p.name] = float(value_of(world.parameter(atom, token)))
    for a in h.attributes.values():
        if world.label[a.on.name][token] is not None:
            values[a.name] = float(value_of(world.at_token(a, token)))
    sizes = re.findall(r"(?:count|total)\([^()]*\)", text)
    return of(text, values, {s: float(value_of(world.at_token(written(h, s), token))) for s in sizes})


def moved(h: Hierarchy, b: Batch, x: list[float]) -> World:
    """The batch at other log ratios, where no probability is above 1."""
    return World(h, replace(b, x=[min(v, -float(old)) for v, old in zip(x, b.policies["old"], strict=True)]), flat=True)


def wrong_radius(h: Hierarchy, f: Fact, draw: Batches) -> str:
    if f.value in ("0", "not certified"):
        return ""
    b = draw()
    radius = min(read(World(h, b), f.value, i) for i in range(b.size))
    size, n = min(radius, 5.0) * (1 - 1e-6), b.size
    for way in ([1] * n, [-1] * n, [1] + [-1] * (n - 1), [draw.rng.choice([-1, 0, 1]) for _ in range(n)]):
        world = moved(h, b, [size * w for w in way])
        ratios = [math.exp(value_of(x)) for x in world.x]
        for i, g in enumerate(world.ratios):
            if not abs(value_of(g) - ratios[i]) <= 1e-11 * max(ratios):
                return f"{f.value} is {radius}, and the ratio {ratios[i]} of token {i} becomes {g} {of_batch(world.batch)}"
    return ""


def wrong_bounds(h: Hierarchy, f: Fact, draw: Batches) -> str:
    """Of ratios, of their logarithms, or of what one level adds to these."""
    b = draw()
    size = draw.rng.choice([Fraction(1, 10), 1, 9])
    world, level = moved(h, b, [float(size * x) for x in b.x]), f.subject.removesuffix(" level")
    for i in range(world.n):
        leaf = world.place(i)[0]
        if level != f.subject and level in (leaf, *world.coarser[leaf]):
            e = world.below(leaf, i, level)
            parts = {c: value_of(found[e]) for (s, c), found in world.gated.items() if s == level}
            value = sum(-v if c == "-" else v for c, v in parts.items())
            value /= value_of(world.value(h.masses[Stratum(level)], level, e))
        elif f.subject.startswith(("𝒢", "log")) and f.subject.endswith(("𝒢", f" on {leaf}")):
            value = value_of(world.ratios[i])
            value = value if f.subject.startswith("𝒢") else math.log(value) if value > 0 else -math.inf
        else:
            continue
        low, high = read(world, f.value, i, interval)
        if not low - 1e-9 * max(1, abs(low)) <= value <= high + 1e-9 * max(1, abs(high)):
            return f"{f.subject} is {float(value)} at token {i}, beyond {low} or {high} {of_batch(world.batch)}"
    return ""


WRONG: dict[str, Callable[[Hierarchy, Fact, Batches], str]] = {
    "share": wrong_share, "idle": wrong_idle, "spill": wrong_spill, "blocks": wrong_blocks, "normaliser": wrong_normaliser,
    "weight": wrong_weight, "radius": wrong_radius, "bounds": wrong_bounds,
}  # fmt: skip


# ---------------------------------------------------------------- what is drawn


def tower(rng: random.Random) -> Hierarchy:
    """A shape with kernels that reflect, and gates of every kind."""
    epsilon = PARAMETERS[0]
    rows = trajectory
    if rng.random() < 0.5:
        kind = random_quivers.KINDS[rng.choice(list(random_quivers.KINDS))]
        made = random_quivers._Draw(str(rng.random()), kind, False)
        shape: dict[str, Any] = {"fibrations": made.fibrations(), "assume": made.assume}
        levels, rows = tuple(made.strata.values()), Stratum(kind.rows)
    else:
        setting = rng.choice(TOWERS)
        levels = setting.strata
        shape = {"fibrations": setting.fibrations, "assume": setting.assume, "groups": setting.groups}
    gates = (
        clip_gate(epsilon).per(mass), clip_gate(epsilon).per(mass).inward(), aggregate_gate(epsilon, 2).per(mass),
        identity_gate(), identity_gate(), zero_gate(), Gate(residual / 3), Gate(mass * tanh(residual / mass)),
    )  # fmt: skip
    chosen = {s: rng.choice(gates) for s in levels}
    if rng.random() < 0.1:
        s = rng.choice(shape["fibrations"]).source
        coarser = [f.target for f in shape["fibrations"] if f.source == s]
        chosen[s] = Gate(residual + mass * tanh(density(rng.choice(coarser))))
    length = count(token, over=trajectory)
    objectives = [token_mean(), trajectory_mean(), constant_normaliser(8), Objective(1 / (rng.choice([0, 1]) + length))]
    if token not in levels or rows != trajectory:
        objectives.pop()
    objective = rng.choice(objectives)
    if rng.random() < 0.1:
        objective = objective.keep(advantage > 0, rng.choice(["all", "kept"]))
    return Hierarchy(
        name="tower", gates=chosen, decomposition=rng.choice([log_ratio, signed_log_ratio, ratio_deviation])(scale=mass),
        objective=objective, rows=rows, **shape,
    )  # fmt: skip


@dataclass(frozen=True)
class LevelFacts:
    """The facts about levels of one hierarchy, each on several batches."""

    name: str = "levels"
    timeout: float = 10.0  # most of it draws batches that the assumptions allow
    tries: int = 5

    def draw(self, rng: random.Random) -> OfHierarchy:
        for _ in range(20):
            try:
                return OfHierarchy(tower(rng))
            except FibrationError:
                continue
        raise NothingDrawn

    def judge(self, case: OfHierarchy, rng: random.Random) -> tuple[list[str], str]:
        h, statuses = case.h, list[str]()
        draw = Batches(h, rng, 24)
        for f in found_facts(h, tuple(WRONG)) or ():
            statuses.append(f"{f.name}, 0 on policy" if "on policy 0" in f.argument else f.name)
            for _ in range(self.tries):
                complaint, why = attempt(lambda f=f: WRONG[f.name](h, f, draw))
                if complaint and not why:
                    return statuses, f"wrong {f.name}: {complaint}"
        return statuses, ""


JUDGES = (LevelFacts(),)
