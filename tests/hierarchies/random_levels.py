"""Random levels: gates that pass, drop, halve, bend or clip a residual, or read a coarser density."""

from fibration import Gate, clip, density, log_ratio, ratio_deviation, residual, tanh, trajectory_mean, where
from fibration.language.atoms import mass
from hierarchies.builders import budget, epsilon
from hierarchies.first_order_specs import DEVIATION, SIGNED, deep_tree, quiver, three, tree


def pull(h, source, target):
    """The factor that spreads a density of `target` over the elements of `source`."""
    path = h.shape.path(source, target)
    result = path[0].weight
    for f in path[1:]:
        result = result * f.weight
    return result


def random_levels(rng):
    """A shape, and gates that keep, drop, halve, bend, clip, or take up what a coarser level holds, right or wrong."""
    shapes = [three, tree, deep_tree, quiver]
    build, split = (
        rng.choice(shapes),
        rng.choice([log_ratio(scale=mass), SIGNED, ratio_deviation(scale=mass), DEVIATION]),
    )
    plain = build({})
    gates, broken = {}, rng.random()
    for s in plain.order:
        up = plain.coarser(s)
        options = [
            residual,
            residual,
            residual,
            tanh(residual),
            clip(residual, -budget, budget),
            residual * residual + residual,
        ]
        if broken < 0.7:
            options += [0 * residual, residual / 2, where(residual >= 0, residual, 0), residual + 0.1, residual - 0.1]
        gate = rng.choice(options)
        dropped = [u for u in up if gates.get(u) == Gate(0 * residual)]
        for u in dropped if dropped and rng.random() < 0.8 else rng.sample(list(up), len(up) > 0 and broken < 0.2):
            factor = pull(plain, s, u)
            own = density(u) * factor
            if rng.random() < 0.85:  # what the level dropped: its own density less what is coarser
                for v, c in plain.shape.moebius(u).items():
                    own = own - c * density(v) * factor * pull(plain, u, v)
            gate = gate + rng.choice([own, own, own, own / 2, where(own >= 0, own, 0), clip(own, -epsilon, epsilon)])
        gates[s] = Gate(gate)
    more = {"objective": trajectory_mean().score()} if rng.random() < 0.15 and build in (tree, quiver) else {}
    return build(gates, split, **more)
