"""The leaf measure `m` that the kernels spread: `K(a|b) = m(a)/m(b)`, the normal form of reflecting kernels.

In units of `m`, a pushforward is a weighted mean over the fibre, a reflecting kernel is a broadcast, and a residual is
the difference of two means. On a tree that is a martingale difference.
"""

from __future__ import annotations

from fibration.language.atoms import Count, Stratum, Total, mass
from fibration.language.cancel import ONE, cancel, factors_over
from fibration.language.decompositions import Decomposition
from fibration.language.expressions import Expression
from fibration.language.strata import Shape
from fibration.language.traversal import atoms, transform


def masses(shape: Shape, decomposition: Decomposition) -> dict[Stratum, Expression]:
    """Returns `m` of every stratum, read at its elements. If paths disagree, it follows the first (law `coherent`).

    `m` is free up to a factor per root. With one root, `m(leaf)` is the decomposition's scale if a factor can make it
    so, and the scale disappears from the normal form. Otherwise `m(root) = 1`. With several roots, see `gauge`.
    """
    roots = shape.roots
    found: dict[Stratum, Expression] = {}
    for stratum in shape.order:
        below = shape.below(stratum)
        if below:
            found[stratum] = cancel(found[below[0].target] * transform(below[0].weight, own))
        else:
            found[stratum] = ONE if len(roots) == 1 else gauge(shape, stratum)
    scale = decomposition.scale
    if len(roots) == 1 and mass not in atoms(scale):
        factors = {cancel(scale / found[leaf]) for leaf in shape.leaves}
        factor = factors.pop()
        over_root = all(isinstance(a, (Count, Total)) and a.over == roots[0] for a in atoms(factor))
        if not factors and over_root:
            return {s: cancel(factor * m) for s, m in found.items()}
    return found


def own(atom: Expression) -> Expression:
    """Simplifies a count or total over its own stratum: `proportional(count(token))` on tokens is `uniform()`."""
    if isinstance(atom, Count) and atom.of == atom.over:
        return ONE
    if isinstance(atom, Total) and atom.over == atom.attribute.on:
        return atom.attribute
    return atom


def gauge(shape: Shape, root: Stratum) -> Expression:
    """Returns `m` of one of several roots: the divisor of a kernel over it, so that uniform kernels share a measure."""
    above = shape.above(root)
    if not above:
        return ONE
    _, outside = factors_over(above[0].weight, above[0].source.name)
    return cancel(1 / outside)
