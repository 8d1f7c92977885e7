"""The program of a function of torch: its loss and its gradients as formulas of the numbers of a small batch.

The function runs once. Beside each storage lies an array with a formula for each element, so that views share them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from fibration.auditing import formula as f
from fibration.auditing.formula import Atom, Formula, Untraced, number

Watch = Callable[[Any], None]
PATHS = 64  # ways through the conditions of a function
DEEP = 10  # conditions of one path


def _softplus(x: Any, beta: Any = 1, _: Any = 20) -> Any:
    return f.div(f.log(f.add(1, f.exp(f.mul(beta, x)))), beta)


def _sigmoid(x: Any) -> Any:
    return f.power(f.add(1, f.exp(f.neg(x))), -1)


def _clamp(x: Any, least: Any = None, most: Any = None) -> Any:
    x = x if least is None else f.maximum(x, least)
    return x if most is None else f.minimum(x, most)


def _sign(x: Any) -> Any:
    return f.choose(f.less(x, 0), -1, f.choose(f.less(0, x), 1, 0))


# What an operator makes of single numbers. Finite numbers are meant: none is NaN.
POINTWISE: dict[str, Callable[..., Any]] = {
    "add": lambda a, b, alpha=1: f.add(a, f.mul(alpha, b)), "sub": lambda a, b, alpha=1: f.sub(a, f.mul(alpha, b)),
    "rsub": lambda a, b, alpha=1: f.sub(b, f.mul(alpha, a)), "mul": f.mul, "neg": f.neg, "pow": f.power,
    "div": lambda a, b, rounding_mode=None: f.apply(rounding_mode, f.div(a, b)) if rounding_mode else f.div(a, b),
    "reciprocal": lambda a: f.power(a, -1), "rsqrt": lambda a: f.power(f.apply("sqrt", a), -1),
    "square": lambda a: f.mul(a, a), "exp": f.exp, "log": f.log, "log1p": lambda a: f.log(f.add(1, a)),
    "expm1": lambda a: f.sub(f.exp(a), 1), "abs": lambda a: f.choose(f.less(a, 0), f.neg(a), a), "sgn": _sign,
    "sign": _sign, "sigmoid": _sigmoid, "softplus": _softplus, "minimum": f.minimum, "maximum": f.maximum,
    "clamp": _clamp, "clamp_min": f.maximum, "clamp_max": f.minimum, "relu": lambda a: f.maximum(a, 0),
    "where": f.choose, "masked_fill": lambda a, c, b: f.choose(c, b, a), "nan_to_num": lambda a, *_: a,
    "lt": f.less, "le": lambda a, b: f.less(a, b, "le"), "gt": lambda a, b: f.less(b, a),
    "ge": lambda a, b: f.less(b, a, "le"), "eq": lambda a, b: f.less(a, b, "eq"),
    "ne": lambda a, b: f.negate(f.less(a, b, "eq")), "isnan": lambda a: False, "isinf": lambda a: False,
    "logical_and": f.both, "bitwise_and": f.both, "logical_or": f.either, "bitwise_or": f.either,
    "logical_not": f.negate, "bitwise_not": f.negate, "logical_xor": lambda a, b: f.choose(a, f.negate(b), f.truth(b)),
    "threshold_backward": lambda g, a, b: f.choose(f.less(b, a), g, 0),
    "sigmoid_backward": lambda g, y: f.mul(g, f.mul(y, f.sub(1, y))),
    "tanh_backward": lambda g, y: f.mul(g, f.sub(1, f.mul(y, y))),
    "softplus_backward": lambda g, a, b=1, _=20: f.mul(g, _sigmoid(f.mul(a, b))),
    "log_sigmoid_forward": lambda a: f.neg(_softplus(f.neg(a))),
    "log_sigmoid_backward": lambda g, a, _: f.mul(g, _sigmoid(f.neg(a))),
    **{name: partial(f.apply, name) for name in ("sqrt", "tanh", "atan", "floor", "ceil", "round", "trunc")},
}  # fmt: skip
# Linear in the numbers: what they make of units says what they make of formulas.
LINEAR = set(
    "sum mean cumsum flip roll cat stack index index_put _index_put_impl gather scatter scatter_add index_select "
    "index_add index_copy masked_select masked_scatter select_backward slice_backward select_scatter slice_scatter "
    "_to_copy clone copy convert_element_type constant_pad_nd repeat tril triu index_fill fill zero diff _unsafe_index "
    "new_zeros zeros_like ones_like full_like new_full new_ones lift_fresh empty_like new_empty new_empty_strided "
    "repeat_interleave _unsafe_index_put unfold_backward".split()
)


def _folded(of: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def fold(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        dims = [dim] if isinstance(dim, int) else dim or list(range(x.ndim))
        first = torch.movedim(x, dims, list(range(len(dims))))
        found = reduce(of, first.flatten(0, len(dims) - 1).unbind())
        return torch.movedim(found[(None,) * len(dims)], list(range(len(dims))), dims) if keepdim else found

    return fold


def _var(x: Tensor, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Tensor:
    dims = dim or list(range(x.ndim))
    mean = x.mean(dims, True)
    freedom = x.numel() / max(mean.numel(), 1) - (1 if correction is None else correction)
    return (x - mean).square().sum(dims, keepdim) / max(freedom, 0)


def _log_sum(x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    return x.exp().sum(dim, keepdim).log()


# As other operators.
REWRITTEN: dict[str, Callable[..., Any]] = {
    "var": _var, "std": lambda *a, **k: _var(*a, **k).sqrt(), "logsumexp": _log_sum,
    "mm": lambda a, b: (a[:, :, None] * b[None]).sum(1), "mv": lambda a, b: (a * b).sum(1),
    "dot": lambda a, b: (a * b).sum(), "bmm": lambda a, b: (a[:, :, :, None] * b[:, None]).sum(2),
    "_softmax": lambda x, dim, _: x.exp() / x.exp().sum(dim, True), "xlogy": lambda a, b: a * b.log(),
    "_log_softmax": lambda x, dim, _: x - _log_sum(x, dim, True), "lerp": lambda a, b, w: a + w * (b - a),
    "logaddexp": lambda a, b: (a.exp() + b.exp()).log(), "addcmul": lambda a, b, c, value=1: a + value * b * c,
    "amax": _folded(torch.maximum), "amin": _folded(torch.minimum), "max": _folded(torch.maximum),
    "min": _folded(torch.minimum), "any": _folded(torch.logical_or), "all": _folded(torch.logical_and),
    "prod": _folded(torch.mul), "cumprod": lambda x, dim: torch.stack(list(accumulate(x.unbind(dim), torch.mul)), dim),
    "addcdiv": lambda a, b, c, value=1: a + value * b / c,
}  # fmt: skip
SHAPES = ("squeeze", "unsqueeze", "t", "transpose", "detach")  # in place or not, they move no number
ORDERED = ("sort", "argsort", "topk", "argmax", "argmin", "median", "kthvalue", "max.dim", "min.dim")
BY_CONDITION = ("index", "index_put", "_index_put_impl", "masked_select", "nonzero", "masked_scatter", "_unsafe_index")


class Mode(TorchDispatchMode):
    """A mode that torch does not import its compiler for, which takes a second."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Recorder(Mode):
    """Formulas beside the numbers of tensors. `decisions`: of the first conditions; numbers decide the others.

    `watch` is called with the formulas that an operator makes, and with a condition that has to be decided.
    """

    def __init__(self, decisions: Sequence[bool], watch: Watch | None = None) -> None:
        super().__init__()
        self.decisions, self.watch, self.at = decisions, watch, dict[Atom, float]()
        self.guards: list[tuple[Atom, bool]] = []
        self._memory: dict[int, Any] = {}
        self._alive: list[Any] = []

    def formulas(self, t: Tensor) -> Any:
        """The formulas of a tensor: a view of those of its storage."""
        storage = t.untyped_storage()
        key = storage._cdata
        if key not in self._memory:
            count = storage.nbytes() // t.element_size()
            flat = torch.empty(0, dtype=t.dtype).set_(storage, 0, (count,), (1,))  # type: ignore[call-overload]
            self._memory[key] = objects(map(number, flat.tolist()))
            self._alive.append(storage)
        array = self._memory[key][t.storage_offset() :]
        return np.lib.stride_tricks.as_strided(array, t.shape, [array.itemsize * s for s in t.stride()])

    def is_known(self, t: Any) -> bool:
        return isinstance(t, Tensor) and t.layout is torch.strided and t.untyped_storage()._cdata in self._memory

    def is_symbolic(self, t: Any) -> bool:
        return self.is_known(t) and any(isinstance(v, (Atom, Formula)) for v in self.formulas(t).flat)

    def decide(self, condition: Any) -> bool:
        """Which way a condition goes on this path."""
        c = f.truth(condition)
        if not isinstance(c, Atom):
            return bool(c)
        for known, way in self.guards:
            if known is c or known is f.negate(c):
                return way is (known is c)
        k = len(self.guards)
        way = self.decisions[k] if k < len(self.decisions) else bool(f.evaluate([c], self.at)[0])
        self.guards.append((c, way))
        if self.watch:
            self.watch(c)
        return way

    def settled(self, t: Any) -> Any:
        """A tensor of conditions as one of this path."""
        if not self.is_symbolic(t):
            return t
        if t.dtype != torch.bool:
            raise Untraced("an index depends on numbers")
        return torch.tensor([self.decide(v) for v in self.formulas(t).flat], dtype=torch.bool).reshape(t.shape)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func._schema.name.split("::")[1]
        aliases = [a.alias_info for a in (*func._schema.arguments, *func._schema.returns) if a.alias_info is not None]
        writes = any(a.is_write for a in aliases)
        name = name[:-1] if writes and name.endswith("_") else name
        if name in BY_CONDITION and any(map(self.is_symbolic, tree_leaves((args, kwargs)))):
            x = args[0] if name != "nonzero" else self.settled(args[0])
            args = (x, *(tree_map(self.settled, args[1:2])), *args[2:])
        if name in SHAPES or (aliases and not writes) or not any(map(self.is_symbolic, tree_leaves((args, kwargs)))):
            out = func(*args, **kwargs)
            for t in tree_leaves(out) if writes else ():
                if self.is_known(t):
                    self.formulas(t)[...] = objects(map(number, t.flatten().tolist())).reshape(t.shape)
            return out
        if name == "_local_scalar_dense":
            is_condition = args[0].dtype == torch.bool
            return self.decide(self.formulas(args[0]).item()) if is_condition else func(*args, **kwargs)
        if name in ORDERED or f"{name}.{func._overloadname}" in ORDERED:
            return self._ordered(func, args, kwargs)
        if name not in POINTWISE and name not in LINEAR:
            rewritten = REWRITTEN.get(name) or decomposition_table.get(func)
            if rewritten is None:
                raise Untraced(f"no rule says what {func} does")
            with self:
                return rewritten(*args, **kwargs)
        how = self._pointwise if name in POINTWISE else self._linear
        made, out = how(name, func, args, kwargs), func(*args, **kwargs)
        first = out if isinstance(out, Tensor) else out[0]
        self.formulas(first)[...] = np.broadcast_to(made, first.shape)
        if self.watch:
            self.watch(self.formulas(first).copy())
        return out

    def _pointwise(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        given = [self.formulas(a) if isinstance(a, Tensor) else number(a) if isinstance(a, float) else a for a in args]
        named = {k: v for k, v in kwargs.items() if k in ("alpha", "rounding_mode")}
        arrays = [i for i, a in enumerate(given) if isinstance(a, np.ndarray)]
        wide = np.broadcast_arrays(*(given[i] for i in arrays))
        made = np.empty(wide[0].shape, object)
        for place in np.ndindex(made.shape):
            each = dict(enumerate(given)) | {i: w[place] for i, w in zip(arrays, wide, strict=True)}
            made[place] = POINTWISE[name](*each.values(), **named)
        return made

    def _linear(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """What the operator makes of units, as sums of formulas."""
        leaves = {id(t): t for t in tree_leaves((args, kwargs)) if self.is_symbolic(t)}
        still = {k: torch.zeros(t.shape, dtype=t.dtype) for k, t in leaves.items()}

        def run(units: Mapping[int, Tensor]) -> Any:
            def fresh(a: Any) -> Any:
                return units[id(a)].clone() if id(a) in units else a.clone() if isinstance(a, Tensor) else a

            given = tree_map(fresh, (args, kwargs))
            out = func(*given[0], **given[1])
            return (out if isinstance(out, Tensor) else out[0]).double().numpy()

        constant = run(still)
        terms = objects([[number(v)] if v else [] for v in constant.flat]).reshape(constant.shape)
        for key, t in leaves.items():
            for place, v in np.ndenumerate(self.formulas(t)):
                unit = torch.zeros(t.shape, dtype=t.dtype)
                unit[place] = 1
                change = run({**still, key: unit}) - constant
                for at in map(tuple, np.argwhere(change)):
                    k = number(change[at])
                    terms[at].append(v if k == 1 else f.mul(k, v))
        each = [v[0] if len(v) == 1 else f.add(*v) for v in terms.flat]
        return objects(each).reshape(constant.shape)

    def _ordered(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operator that sorts: on the path of its comparisons, by how many elements each one is above."""
        x, ranks = args[0], args[0].clone()
        given = {**dict(zip((a.name for a in func._schema.arguments), args, strict=False)), **kwargs}
        dim = given.get("dim", -1 if x.ndim == 1 else None)
        if dim is None and x.ndim != 1:
            raise Untraced(f"no rule says what {func} does")
        dim = -1 if dim is None else dim
        lines, below = np.moveaxis(self.formulas(x), dim, -1), torch.moveaxis(ranks, dim, -1)
        for (*line, i), v in np.ndenumerate(lines):
            below[(*line, i)] = sum(self.decide(f.less(w, v)) for w in lines[tuple(line)])
        order = func(ranks, *args[1:], **kwargs)
        if isinstance(order, Tensor):  # of indices
            return order
        index = order[1]
        keeps = index.ndim == x.ndim
        with self:
            taken = torch.gather(x, dim, index if keeps else index.unsqueeze(dim))
        return type(order)((taken if keeps else taken.squeeze(dim), index))


def objects(values: Any) -> Any:
    """A vector of objects."""
    values = list(values)
    found = np.empty(len(values), object)
    found[:] = values
    return found


class Halves(Mode):
    """`found`: dtypes of 16 bits to which numbers are rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.found = set[torch.dtype]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and out.dtype in (torch.bfloat16, torch.float16):
            self.found |= set() if torch.equal(out.to(args[0].dtype), args[0]) else {out.dtype}
        return out


class _Escapes(TorchFunctionMode):
    """`.item()` gives a number that keeps its formula: a tensor without a gradient. A quantile is one function."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.item and args[0].is_floating_point():
            return args[0].detach().clone().reshape(())
        if func in (torch.quantile, torch.Tensor.quantile) and len(args) == 2 and not kwargs and args[0].ndim == 1:
            x, level = args[0].detach(), args[1]
            with torch._C._DisableTorchDispatch():
                out = func(x, level)
                if self.recorder.is_symbolic(x):
                    level = number(level.item() if isinstance(level, Tensor) else level)
                    self.recorder.formulas(out)[...] = f.apply("quantile", level, *self.recorder.formulas(x))
            return out
        return func(*args, **kwargs)


@dataclass
class Traced:
    """The loss and, by role, `−∂loss/∂input`, as formulas of the inputs. `tokens`: of what moves, at tokens alone."""

    loss: Any
    coefficients: dict[str, Any]
    guards: list[tuple[Atom, bool]] = field(default_factory=list)
    tokens: list[Any] = field(default_factory=list)


@np.errstate(all="ignore")  # of infinities that a function makes and drops
def trace(
    loss: Callable[[Mapping[str, Tensor]], Tensor],
    given: Mapping[str, Tensor],
    names: Mapping[str, Any],
    watch: Watch | None = None,
) -> Traced:
    """The program of a function of tensors by role. `names`: the variables of those whose numbers are not fixed."""
    found: list[Traced] = []
    todo: list[tuple[bool, ...]] = [()]
    while todo:
        if len(found) + len(todo) > PATHS or (found and len(found[0].guards) > DEEP):
            error = Untraced(f"it has more than {PATHS} paths")
            error.seen = list(next(iter(found[0].coefficients.values())).flat)  # of the argument that moves
            raise error
        prefix = todo.pop(0)  # the shortest first, since most others follow from it: too many are known soon
        found.append(_path(loss, given, names, Recorder(prefix, watch)))
        ways = [way for _, way in found[-1].guards]
        todo += [(*ways[:k], not ways[k]) for k in range(len(prefix), len(ways))]

    def joined(paths: list[Traced], k: int, read: Callable[[Traced], Any]) -> Any:
        if len(paths) == 1:
            return read(paths[0])
        yes, no = ([p for p in paths if p.guards[k][1] is way] for way in (True, False))
        return f.choose(paths[0].guards[k][0], joined(yes, k + 1, read), joined(no, k + 1, read))

    made = {}
    for role, array in found[0].coefficients.items():
        each = (joined(found, 0, lambda t, r=role, p=p: t.coefficients[r][p]) for p in np.ndindex(array.shape))  # type: ignore[misc]
        made[role] = objects(each).reshape(array.shape)
    return Traced(joined(found, 0, lambda t: t.loss), made)


def _path(loss: Any, given: Mapping[str, Tensor], names: Mapping[str, Any], recorder: Recorder) -> Traced:
    leaves = {role: given[role].clone().requires_grad_() for role in names}
    for role, array in names.items():
        for place, v in np.ndenumerate(array):
            recorder.formulas(leaves[role].detach())[place] = f.single(v)
            recorder.at[v] = float(given[role][place])
    with _Escapes(recorder), recorder:
        found = loss({r: leaves.get(r, t).clone() for r, t in given.items()})
        gradients = torch.autograd.grad(found, list(leaves.values()), allow_unused=True)
    with torch._C._DisableTorchDispatch():
        made = {}
        for role, g in zip(leaves, gradients, strict=True):
            each = [0] * given[role].numel() if g is None else recorder.formulas(g).flat
            made[role] = objects(map(f.neg, each)).reshape(tuple(given[role].shape))
        return Traced(recorder.formulas(found.detach()).item(), made, recorder.guards)
