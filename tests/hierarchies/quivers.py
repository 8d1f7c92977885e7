"""Right and wrong trees and quivers, each with the law that refutes it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fibration import (
    Attribute,
    Fibration,
    Gate,
    Hierarchy,
    MarkovKernel,
    Parameter,
    advantage,
    clip_gate,
    count,
    density,
    identity_gate,
    log_ratio,
    pessimistic_clip_gate,
    proportional,
    residual,
    strata,
    token_mean,
    total,
    uniform,
    where,
)
from fibration.language.atoms import Stratum, mass
from fibration.language.expressions import Expression, as_expression
from fibration.language.report import Verdict
from fibration.language.strata import balanced, populated
from fibration.laws import LAWS
from fibration.laws.subject import Subject

F = Fraction
token, text, image, audio, turn, trajectory = strata("token text_token image_token audio_token turn trajectory")
domain, modality, length, expert, cell, camera = strata("domain modality length expert domain_modality camera")
batch, group, speech, sight = strata("batch prompt_group speech sight")
weight = Attribute("weight", on=token)
share = Parameter("share", default=0.5, upper=1)
MINE = ("structure", "locality", "markov", "reflecting", "coherent", "orthogonality")

Kernel = MarkovKernel | Expression | None
Edge = tuple[Stratum, Stratum] | tuple[Stratum, Stratum, Kernel]


def make(*edges: Edge, gates: Mapping[Stratum, Gate] = {}, **more: Any) -> Hierarchy:
    """Edges with their kernels; without one, proportional to the count of tokens."""
    fibrations = []
    for source, target, *rest in edges:
        kernel = rest[0] if rest else proportional(count(token))
        fibrations.append(
            Fibration(source, target, kernel if isinstance(kernel, MarkovKernel) else MarkovKernel(kernel))
        )
    met = dict.fromkeys(s for f in fibrations for s in (f.source, f.target))
    more = {"decomposition": log_ratio(), "objective": token_mean(), "name": "q", **more}
    return Hierarchy(fibrations=fibrations, gates={s: gates.get(s, identity_gate()) for s in met}, **more)


def mine(h: Hierarchy) -> list[Verdict]:
    """The verdicts of the laws of this file, in their order."""
    subject = Subject(h, [])
    for name in MINE:
        subject.verdicts += list(LAWS[name].decide(subject))
        subject.before.append(LAWS[name])
        if LAWS[name].needed_by_all and subject.first_failure(name):
            break
    return subject.verdicts


@dataclass(frozen=True)
class Case:
    """A hierarchy, the verdict that it must get, and words of what is said; without a law, all are proved."""

    hierarchy: Hierarchy
    law: str = ""
    subject: str = "hierarchy"
    words: tuple[str, ...] = ()
    status: str = "refuted"


def n(of: Stratum, over: Stratum = trajectory) -> Expression:
    return count(of, over=over)


HALF = uniform(share=as_expression(0.5))
BOTH = 1 / (n(text) + n(image))
TREE = ((text, trajectory, BOTH), (image, trajectory, BOTH), (trajectory, group, uniform()))
CROSS = ((token, trajectory), (trajectory, domain), (trajectory, modality), (domain, batch), (modality, batch))
NESTED = ((token, expert), (expert, batch), *CROSS)
THREE = (*CROSS, (trajectory, length), (length, batch))
CELL = ((token, trajectory), (trajectory, cell), (cell, domain), (cell, modality), (domain, batch), (modality, batch))
SHORT = ((token, turn), (turn, trajectory), (token, trajectory))
OF_TURN = n(text, turn) + n(image, turn)
SHORT_TEXT = (
    (text, turn, 1 / OF_TURN), (image, turn, 1 / OF_TURN), (turn, trajectory, OF_TURN / (n(text) + n(image))),
)  # fmt: skip
ALL = n(text, batch) + n(image, batch)
PARTS = (
    (text, trajectory, BOTH), (image, trajectory, BOTH), (trajectory, batch, (n(text) + n(image)) / ALL),
    (image, expert, 1 / n(image, expert)),
)  # fmt: skip
PARTED = ((text, trajectory, uniform(share)), (image, trajectory, uniform(1 - share)), *CROSS[1:])
BRANCHES = [populated(text, over=trajectory), populated(image, over=trajectory)]
DM = balanced(domain, modality)


def parted(weight: Kernel) -> Hierarchy:
    """Text and image over trajectories, image over experts too, and a kernel of experts over the batch."""
    return make(*PARTS, (expert, batch, weight), gives_up={"orthogonality": "experts hold a part of a batch"})


def mixed(**more: Any) -> Hierarchy:
    """Text and image over trajectories, which cross: one measure, of all tokens."""

    def all_over(s: Stratum) -> Expression:
        return n(text, s) + n(image, s)

    def share_of(a: Stratum, b: Stratum) -> Edge:
        return a, b, all_over(a) / all_over(b)

    return make(
        (text, trajectory, BOTH), (image, trajectory, BOTH), share_of(trajectory, domain), share_of(trajectory, modality),
        share_of(domain, batch), share_of(modality, batch), **more,
    )  # fmt: skip


@functools.cache
def right() -> dict[str, Case]:
    over_turn = n(token, turn)
    return {
        "tree of one measure": Case(make(*TREE)),
        "a shortcut of one leaf": Case(make(*SHORT_TEXT, (text, trajectory, BOTH))),
        "tree of one measure, leaves at different depths": Case(
            make((text, turn, uniform()), (turn, trajectory, n(text, turn) / (n(text) + n(image))), (image, trajectory, BOTH))
        ),
        "tree with shares, populated": Case(
            make(
                (text, trajectory, HALF), (image, trajectory, HALF),
                assume=[populated(text, over=trajectory), populated(image, over=trajectory)],
            )
        ),
        "a parameter in the mass, by which F and R scale": Case(
            make(*PARTED[:2], assume=BRANCHES, decomposition=log_ratio(scale=mass))
        ),
        "tree with a share by a parameter, populated": Case(
            make(
                (text, trajectory, uniform(share=share)), (image, trajectory, uniform(share=1 - share)),
                assume=[populated(text, over=trajectory), populated(image, over=trajectory)],
            )
        ),
        "tree with shares by what is there": Case(
            make(
                (text, trajectory, uniform(share=where(n(image) > 0, 0.25, 1))),
                (image, trajectory, uniform(share=where(n(text) > 0, 0.75, 1))),
            )
        ),
        "tree with shares, one branch populated": Case(
            make(
                (text, trajectory, uniform(share=where(n(image) > 0, 0.25, 1))),
                (image, trajectory, uniform(share=as_expression(0.75))),
                assume=[populated(text, over=trajectory)],
            )
        ),
        "tree of three branches": Case(
            make(*((s, trajectory, 1 / (n(text) + n(image) + n(audio))) for s in (text, image, audio)))
        ),
        "crossing, balanced": Case(make(*CROSS, assume=[DM])),
        "crossing, by least squares": Case(make(*CROSS, orthogonalise="projection")),
        "crossing, by totals of an attribute": Case(
            make(
                *((a, b, (weight if a == token else total(weight, over=a)) / total(weight, over=b)) for a, b in CROSS),
                assume=[DM],
            )
        ),
        "crossing, proportional to totals of an attribute": Case(
            make(*((a, b, proportional(total(weight))) for a, b in CROSS), orthogonalise="projection")
        ),
        "three crossing, balanced by pairs": Case(
            make(*THREE, assume=[DM, balanced(domain, length), balanced(modality, length)])
        ),
        "nested crossings, balanced": Case(make(*NESTED, assume=[DM, balanced(expert, trajectory)])),
        "cells and their margins, balanced": Case(make(*CELL, assume=[DM])),
        "a chain through cells": Case(make((token, trajectory), (trajectory, cell), (cell, domain), (domain, batch))),
        "crossing within each domain": Case(
            make(
                (token, trajectory), (trajectory, modality), (trajectory, length), (modality, domain), (length, domain),
                (domain, batch), assume=[balanced(modality, length)],
            )
        ),
        "shortcut, by counts": Case(make(*SHORT)),
        "shortcut, uniform in steps": Case(
            make((token, turn, uniform()), (turn, trajectory, uniform()), (token, trajectory, 1 / (over_turn * n(turn))))
        ),
        "tree under a crossing, balanced": Case(mixed(assume=[DM])),
        "tree under a crossing, by least squares": Case(mixed(orthogonalise="projection")),
        "a gate that reads the mass": Case(
            make(*TREE, gates={trajectory: Gate(residual * mass / mass)})
        ),
        "a share of what is read where it is": Case(
            make(*TREE, gates={image: clip_gate(share).per(1 / n(image))})
        ),
    }  # fmt: skip


@functools.cache
def wrong() -> dict[str, Case]:
    def refuted(h: Hierarchy, law: str, subject: str, *words: str) -> Case:
        return Case(h, law, subject, words)

    def structure(h: Hierarchy, *words: str) -> Case:
        return Case(h, "structure", "hierarchy", words)

    on_trajectory = "residual on trajectory"
    joint = "kernels text_token, image_token → trajectory"
    one = uniform()
    forest = make((text, turn, one), (image, trajectory, one))
    return {
        # structure
        "a forest": structure(forest, "several parts", "add Fibration(turn, trajectory, kernel=uniform())"),
        "a cycle beside a tree": structure(make((text, turn, one), (turn, trajectory, one), (trajectory, turn, one)), "cycle"),
        "an edge twice in a tree": structure(
            make((text, trajectory, one), (image, trajectory, one), (text, trajectory, one)), "declared twice"
        ),
        "overlapping children": structure(
            make(
                (text, speech, one), (image, speech, one), (image, sight, one), (audio, sight, one),
                (speech, trajectory, one), (sight, trajectory, one),
            ),
            "speech and sight over trajectory overlap", "image_token over one trajectory lies over both",
            "remove Fibration(image_token, speech,",
        ),
        "rows that are a leaf of a tree": structure(make(*TREE, rows=image), "the sampled stratum 'image_token'"),
        "rows beside a leaf": structure(
            make((text, turn, one), (turn, group, HALF), (image, group, HALF), rows=turn),
            "rows=turn, over which image_token does not lie", "Fibration(image_token, turn",
        ),
        "balance of what lies over the other": structure(
            make(*CROSS, assume=[balanced(trajectory, domain)]), "trajectory lies over domain", "remove balanced"
        ),
        "balance of branches": structure(make(*TREE, assume=[balanced(text, image)]), "nothing lies over both"),
        "balance without a meet": structure(
            make(*CROSS[:3], assume=[DM]), "without a stratum that both lie over", "Fibration(domain, batch, kernel="
        ),
        "projection of a tree": structure(make(*TREE, orthogonalise="projection"), "nothing crosses", "write orthogonalise=None"),
        "balance in masses of a parameter": structure(
            make(*PARTED, assume=[DM]),
            "balanced(domain, modality) needs the masses of a batch", "kernel reads the parameter 'share'",
            "before parameters have values", "write share = Attribute('share', on=",
        ),
        "projection in masses of a parameter": structure(
            make(*PARTED, orthogonalise="projection"), "orthogonalise='projection' needs the masses", "parameter 'share'"
        ),
        # locality
        "the advantage beside the mass": refuted(
            make(*PARTED[:2], assume=BRANCHES, decomposition=log_ratio(scale=advantage**2 * mass)), "locality", "recovery", "'advantage'"
        ),
        "a gate that reads a crossing stratum": refuted(
            make(*NESTED, gates={trajectory: Gate(residual * (1 + density(expert)))}),
            "locality", "gate on trajectory", "density(expert)", "no trajectory lies over a 'expert'",
        ),
        "a gate that reads the other branch": refuted(
            make(*TREE, gates={text: Gate(residual * (1 + density(image)))}),
            "locality", "gate on text_token", "density(image_token)", "prompt_group",
        ),
        "advantage beside the rows": refuted(
            make(*NESTED, gates={expert: pessimistic_clip_gate(share, share)}), "locality", "gate on expert", "two trajectories"
        ),
        "a kernel that reads a crossing branch": refuted(
            make((token, trajectory), (token, expert, 1 / n(token, trajectory)), (trajectory, batch), (expert, batch, n(token, trajectory) * 1)),
            "locality", "kernel expert → batch", "sum over 'trajectory'",
        ),
        "a kernel that reads the mass": refuted(
            make((token, trajectory, mass / n(token)), (trajectory, group)), "locality", "kernel token → trajectory", "define itself"
        ),
        "a decomposition that one leaf cannot read": refuted(
            make(*TREE, decomposition=log_ratio(scale=1 / n(text, text))), "locality", "recovery", "text_token"
        ),
        # markov, reflecting
        "joint weights that sum to 2": refuted(
            make((text, trajectory, one), (image, trajectory, one)),
            "reflecting", joint, "a trajectory of 1 text_token and 1 image_token gives 2", "uniform(share=...)",
            "1/(count(text_token, over=trajectory) + count(image_token, over=trajectory))",
        ),
        "an empty branch": refuted(
            make((text, trajectory, HALF), (image, trajectory, HALF)),
            "reflecting", joint, "0 text_tokens and 1 image_token gives 1/2", "populated(text_token, over=trajectory)",
        ),
        "the other branch empty": refuted(
            make((text, trajectory, HALF), (image, trajectory, HALF), assume=[populated(text, over=trajectory)]),
            "reflecting", joint, "1 text_token and 0 image_tokens gives 1/2", "populated(image_token, over=trajectory)",
        ),
        "a third each": refuted(
            make((text, trajectory, uniform(share=as_expression(1) / 3)), (image, trajectory, uniform(share=as_expression(1) / 3)),
                 assume=[populated(text, over=trajectory)]),
            "reflecting", joint, "1 text_token and 0 image_tokens gives 1/3",
        ),
        "right up to 5 of each": refuted(
            make((text, trajectory, where(n(text) <= 5, BOTH, 2 * BOTH)), (image, trajectory, BOTH)),
            "reflecting", joint, "6 text_tokens",
        ),
        "one branch counted over the batch": refuted(
            make((text, trajectory, 1 / (n(text) + n(image))), (image, trajectory, 1 / (n(text, group) + n(image, group))), (trajectory, group, one)),
            "reflecting", joint, "gives",
        ),
        "0 divided by the other branch": refuted(
            make((text, trajectory, 1 / n(text) / (1 + n(image) / n(image))), (image, trajectory, HALF)),
            "markov", "kernel text_token → trajectory", "0 image_tokens", "no value",
        ),
        "a share that may be negative": refuted(
            make((text, trajectory, uniform(share=1 - n(image))), (image, trajectory, uniform(share=n(image)))),
            "markov", "kernel text_token → trajectory", "1 text_token and 2 image_tokens",
        ),
        "a turn that counts an empty branch": Case(
            make((text, turn, 1 / (n(text, turn) + n(image, turn))), (image, turn, 1 / (n(text, turn) + n(image, turn))),
                 (turn, trajectory, n(image, turn) / n(image))),
            "markov", "kernel turn → trajectory", ("no value",),
        ),
        "a kernel of a crossing that does not sum to 1": refuted(
            make((token, trajectory), (trajectory, domain), (trajectory, modality, 1 / n(trajectory, domain)), (domain, batch), (modality, batch)),
            "reflecting", "kernel trajectory → modality", "gives",
        ),
        # coherent
        "kernels that do not cohere": refuted(
            make(*((a, b, one) for a, b in CROSS)),
            "coherent", "hierarchy", "trajectory 1 gets", "by way of domain 1", "by way of modality 1",
            "weights along trajectory → domain → batch have the product 1/(count(trajectory, over=domain)*count(domain, over=batch))",
            "and along trajectory → modality → batch have",
        ),
        "a top edge that counts domains": refuted(
            make(*CROSS[:3], (domain, batch, one), (modality, batch)), "coherent", "hierarchy",
            "the kernel domain → batch has the weight 1/count(domain, over=batch), and the others spread count(token, over=domain)/",
            "write Fibration(domain, batch, kernel=MarkovKernel(count(token, over=domain)/count(token, over=batch))) in fibrations; or give all kernels one measure",
        ),
        "a shortcut that does not cohere": refuted(
            make(*((a, b, one) for a, b in SHORT)), "coherent", "hierarchy", "by way of turn 1", "by way of trajectory 1",
            "one of these is wrong: the kernel turn → trajectory has", "; or the kernel token → trajectory has",
        ),
        "two measures on two ways": refuted(
            make((token, trajectory, weight / total(weight, over=trajectory)),
                 (trajectory, domain, total(weight, over=trajectory) / total(weight, over=domain)), (domain, batch), (token, expert),
                 (expert, batch)),
            "coherent", "hierarchy", "gets", "weight = ",
        ),
        # orthogonality
        "missing meet": refuted(
            make(*CROSS[:3]), "orthogonality", on_trajectory, "no common coarsening", "over domain 1 sum to -1",
            "add a common coarsening of domain and modality", "strata('batch')", "Fibration(modality, batch, kernel=",
        ),
        "one arm without the batch": refuted(
            make(*CROSS[:4]), "orthogonality", on_trajectory, "no common coarsening", "Fibration(modality, batch, kernel=",
        ),
        "missing meet, by least squares": refuted(
            make(*CROSS[:3], orthogonalise="projection"), "orthogonality", on_trajectory, "full rank", "add a common coarsening",
        ),
        "a leaf with two roots": refuted(
            make((token, trajectory), (token, expert)), "orthogonality", "residual on token", "no common coarsening", "expert",
        ),
        "unbalanced crossing": refuted(
            make(*CROSS), "orthogonality", on_trajectory, "not proportional", "over domains 1, 2 and modalities 1, 2",
            "assume=[balanced(domain, modality)]", "Fibration(domain_modality, domain, kernel=", "orthogonalise='projection'",
        ),
        "cells do not balance their margins": refuted(
            make(*CELL), "orthogonality", "residual on domain_modality", "or remove Fibration(domain_modality, modality, kernel="
        ),
        "nested crossings, one balanced": refuted(
            make(*NESTED, assume=[DM]), "orthogonality", "residual on token", "assume=[balanced(expert, trajectory)]"
        ),
        "nested crossings, balanced against the coarse": refuted(
            make(*NESTED, assume=[DM, balanced(expert, domain), balanced(expert, modality)]),
            "orthogonality", "residual on token", "balanced(expert, trajectory)",
        ),
        "three crossing, two pairs balanced": refuted(
            make(*THREE, assume=[DM, balanced(domain, length)]), "orthogonality", on_trajectory, "balanced(modality, length)"
        ),
        "two meets that cross": Case(
            make((token, domain), (token, modality), (domain, length), (domain, expert), (modality, length), (modality, expert),
                 (length, batch), (expert, batch), assume=[balanced(length, expert)]),
            "orthogonality", "residual on token", ("meet in", "Fibration(domain, length_expert, kernel="),
        ),
        "balance within a finer meet": refuted(
            make((token, expert), (token, camera), (token, cell), (expert, domain), (expert, length), (camera, modality),
                 (camera, length), (cell, domain), (cell, modality), (domain, batch), (modality, batch), (length, batch),
                 assume=[balanced(expert, camera)]),
            "orthogonality", "residual on domain_modality", "domain and modality may cross",
        ),
        "a part taken for the whole": refuted(
            parted(uniform()), "reflecting", "kernel expert → batch", "share of image_token in it, by way of trajectory",
            "1 text_token and 1 image_token, gives 1, and the share of image_token is 1/2", "count(image_token, over=expert)/(",
        ),
        "half of a part": refuted(
            parted(n(image, expert) / (2 * ALL)), "reflecting", "kernel expert → batch", "gives 1/2", "share of image_token is 1"
        ),
        "a part that no weight gives": refuted(parted(1 / (n(image, expert) - 1)), "markov", "kernel expert → batch", "no value"),
        "a part in other shares": refuted(parted(n(image, batch) / ALL / count(expert, over=batch)), "coherent", "hierarchy"),
        "a shortcut of one leaf that takes all": refuted(
            make(*SHORT_TEXT, (text, trajectory, 1 / n(text))), "reflecting", "kernel text_token → trajectory",
            "share of text_token in it, by way of turn", "1/(count(image_token, over=trajectory) + count(text_token",
        ),
        "a part of what does not sum to 1": refuted(
            make(*((s, t, k / 2 if t == trajectory else k) for s, t, k in PARTS), (expert, batch, n(image, expert) / ALL)),
            "reflecting", "kernels text_token, image_token → trajectory", "gives 1/2",
        ),
        "a branch that crosses": Case(
            make(
                (text, trajectory, BOTH), (image, trajectory, BOTH), (image, camera, 1 / n(image, camera)),
                (trajectory, batch, (n(text) + n(image)) / (n(text, batch) + n(image, batch))),
                (camera, batch, n(image, camera) / (n(text, batch) + n(image, batch))),
            ),
            "orthogonality", "residual on image_token", ("camera",),
        ),
        "projection with balance": Case(
            make(*CROSS, assume=[DM], orthogonalise="projection"), "orthogonality", "hierarchy", ("none is needed", "write orthogonalise=None")
        ),
        "projection of a shortcut": Case(
            make(*SHORT, orthogonalise="projection"), "orthogonality", "hierarchy", ("no two strata cross", "write orthogonalise=None")
        ),
    }  # fmt: skip
