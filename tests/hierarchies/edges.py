"""Hierarchies from edges as text, their indices, and one batch each of a tree and of a crossing."""

import math

import numpy as np
import torch

from fibration import (
    Attribute,
    Fibration,
    Hierarchy,
    balanced,
    count,
    identity_gate,
    log_ratio,
    proportional,
    strata,
    trajectory_mean,
    uniform,
)
from fibration.language.atoms import Stratum
from fibration.runtime.index.spread import build_index

token, text, image, turn, expert = strata("token text image turn expert")
trajectory, domain, modality, family, batch = strata("trajectory domain modality family batch")
N = count(token)
W = Attribute("weight", on=token)
SIGNED = Attribute("signed", on=token, positive=False)


def hierarchy(*edges, kernel=None, kernels=None, **more):
    """`edges` as `"text -> turn"`; kernels by edge, or one for all."""
    fibrations = []
    for edge in edges:
        source, target = map(Stratum, edge.split(" -> "))
        fibrations.append(Fibration(source, target, (kernels or {}).get(edge) or kernel or uniform()))
    found = dict.fromkeys(s for f in fibrations for s in (f.source, f.target))
    return Hierarchy(
        name="h", fibrations=fibrations, gates={s: identity_gate() for s in found},
        decomposition=log_ratio(), objective=trajectory_mean(), **more,
    )  # fmt: skip


def index(h, mask=None, offsets=None, attributes=None, **labels):
    return build_index(h, mask=mask, offsets=offsets, attributes=attributes, labels=labels)


TREE = hierarchy("text -> turn", "turn -> trajectory", "image -> trajectory", "trajectory -> domain")
CROSSED_EDGES = (
    "token -> trajectory",
    "trajectory -> domain",
    "trajectory -> modality",
    "domain -> batch",
    "modality -> batch",
)
FAMILY_EDGES = (
    "token -> trajectory",
    "trajectory -> domain",
    "trajectory -> modality",
    "domain -> family",
    "modality -> family",
)
BESIDE_EDGES = ("token -> trajectory", "token -> expert", "trajectory -> batch", "expert -> batch")


def crossed(**more):
    """domain x modality over the batch, in the measure that counts tokens."""
    kernels = {"token -> trajectory": uniform()}
    return hierarchy(*CROSSED_EDGES, kernels=kernels, kernel=proportional(N), **more)


MASK = torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 0, 1]])
IMAGE = torch.tensor([[0, 1, 0, 1], [1, 1, 1, 1], [1, 0, 1, 1]])  # also where the mask says no
TURN = [[5, None, 6, None], [None] * 4, [math.nan, 7, None, None]]


def tree(**changes):
    return index(TREE, **{"mask": MASK, "image": IMAGE, "turn": TURN, "domain": ["m", None, "c"], **changes})


def lists(parents):
    return {k: v.tolist() for k, v in parents.items()}


BALANCED = crossed(assume=[balanced(domain, modality)])


def crossing(h, cells, **more):
    """One row per cell and as many tokens as it says: `{("math", "text"): 2}`."""
    cells = {k: n for k, n in cells.items() if n}
    first, second = [a for a, _ in cells], [b for _, b in cells]
    offsets = np.concatenate([[0], np.cumsum(list(cells.values()))])
    return index(h, offsets=offsets, domain=first, modality=second, **more)


PROJECTED = crossed(orthogonalise="projection")
