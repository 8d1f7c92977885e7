"""A loss function as people write them, called on batches: its arguments by name, its value and gradient in float64."""

from __future__ import annotations

import inspect
import itertools
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fibration.auditing.batch import UNDER, Batch, Floats, drawn
from fibration.auditing.formula import Untraced, atom, evaluate, free
from fibration.auditing.record import Halves, Traced, Watch, objects, trace
from fibration.errors import AuditError, an, listed
from fibration.language.apart import staying

# What an argument is, by its name. The first name is the one that messages use.
ROLES: Mapping[str, tuple[str, ...]] = {
    "log_probs": (
        "log_probs", "log_prob", "logprobs", "logprob", "logps", "logp", "logpi", "log_pi", "new_log_probs",
        "new_log_prob", "new_logprobs", "new_logps", "new_logp", "policy_log_probs", "policy_logprobs", "policy_logps",
        "current_log_probs", "curr_log_probs", "per_token_logps", "token_log_probs", "action_log_probs", "lp",
    ),
    "old_log_probs": (
        "old_log_probs", "old_log_prob", "old_logprobs", "old_logprob", "old_logps", "old_logp", "old_per_token_logps",
        "log_probs_old", "logprobs_old", "logp_old", "behavior_log_probs", "behaviour_log_probs",
        "old_action_log_probs", "old_lp", "old",
    ),
    "advantages": ("advantages", "advantage", "adv", "advs", "A", "a"),
    "mask": (
        "mask", "response_mask", "completion_mask", "loss_mask", "action_mask", "attention_mask", "eos_mask",
        "completions_mask", "token_mask",
    ),
    "ref_log_probs": (
        "ref_log_probs", "ref_log_prob", "ref_logprobs", "ref_logps", "ref_logp", "ref_per_token_logps",
        "reference_log_probs", "reference_logps", "base_log_probs", "ref_lp",
    ),
    "rollout_log_probs": (
        "rollout_log_probs", "rollout_log_prob", "rollout_logprobs", "rollout_logps", "sampling_log_probs",
        "sampling_logps", "sampling_per_token_logps", "inference_log_probs", "inference_logprobs", "engine_log_probs",
    ),
    "teacher_log_probs": (
        "teacher_log_probs", "teacher_log_prob", "teacher_logprobs", "teacher_logps", "teacher_per_token_logps",
    ),
    "values": ("values", "value", "vpreds", "new_values"),
    "old_values": ("old_values", "old_value", "values_old", "old_vpreds"),
    "returns": ("returns", "value_targets"),
    "rewards": ("rewards", "reward", "scores"),
    "group_ids": ("group_ids", "groups", "group", "group_id", "uid", "uids", "prompt_group"),
    "cu_seqlens": ("cu_seqlens", "offsets", "cu_lens"),
}  # fmt: skip
NAMES = {name: role for role, names in ROLES.items() for name in names}
FIRST_FOUR = ("log_probs", "old_log_probs", "advantages", "mask")
WIDE = torch.float64
IN_PLACE = "a leaf Variable that requires grad is being used in an in-place operation"  # torch, of an input
TRACED = 1e-7  # by how much a program may differ from autograd, relative: numbers beside booleans are float32
ROUNDING = 1e-12  # of coefficients that are differences of larger numbers
OF_ADVANTAGES = (((2, 1), (0, 0)), ((3, 1, 2), (0, 1, 0)), ((2, 3, 2), (0, 0, 1)))  # rows and groups of structures
OF_REWARDS = (
    ((1, 2, 1, 1), (0, 1, 0, 1)),
    ((2, 1, 2, 1, 1), (0, 0, 1, 1, 1)),
    ((1, 2, 1, 1, 1, 1, 2, 1), (0, 0, 0, 0, 0, 0, 1, 1)),
)
DIFFERENTIABLE = "a loss whose gradient can be taken once it is returned"


@dataclass(frozen=True)
class Found:
    """The loss of a batch, and what a step on it does.

    `value`: the loss. `coefficients`: `−∂loss/∂log π` of every token, `[tokens]`; of a critic's loss `−∂loss/∂value`.
    `outside`: the same at masked places.
    """

    value: float
    coefficients: Floats
    outside: Floats

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.value) and np.isfinite(self.coefficients).all())


class Function:
    """A loss function and what its arguments are. Raises AuditError if it cannot be called, in the words of `name`."""

    def __init__(self, call: Callable[..., Any], name: str) -> None:
        self.call, self.name = call, name
        self.arguments = _arguments(call, name)
        self.per_token = False  # whether advantages and rewards are passed per token
        self.mask_is_bool = False
        self._found: dict[tuple[Batch, torch.dtype], Found] = {}
        self._try()

    @property
    def roles(self) -> set[str]:
        return set(self.arguments.values())

    @property
    def moves(self) -> str:
        """The argument in which the gradient is taken: log-probs, or the values of a critic."""
        return "log_probs" if "log_probs" in self.roles else "values"

    @property
    def is_packed(self) -> bool:
        return "cu_seqlens" in self.roles

    def given(self, batch: Batch, dtype: torch.dtype = WIDE) -> dict[str, Tensor]:
        """The tensors of a batch, by role."""

        def tokens(values: Floats, under: float = 0.0) -> Tensor:
            if self.is_packed:
                return torch.from_numpy(values.copy()).to(dtype)
            return batch.padded(values, dtype, under)

        def rows(name: str) -> Tensor:
            values = np.array([getattr(r, name) for r in batch.rows], np.float64)
            if self.per_token:
                return tokens(np.repeat(values, batch.lengths), 0.0)
            return torch.from_numpy(values).to(dtype)

        made: dict[str, Callable[[], Tensor]] = {
            "advantages": lambda: rows("advantage"),
            "rewards": lambda: rows("reward"),
            "mask": lambda: batch.mask if self.mask_is_bool else batch.mask.to(dtype),
            "group_ids": lambda: torch.tensor([r.group for r in batch.rows]),
            "cu_seqlens": lambda: torch.tensor(np.cumsum([0, *batch.lengths]), dtype=torch.int32),
        }
        value = batch.padding.value
        policies = {p: (lambda p=p, k=k: tokens(batch.of(p), k * value)) for p, k in UNDER.items()}
        return {role: {**policies, **made}[role]() for role in self.arguments.values()}

    def loss(self, given: Mapping[str, Tensor]) -> Tensor:
        """The loss of tensors by role. Raises AuditError for a result that is no scalar."""
        with self._calling(given):
            result = self.call(**{name: given[role] for name, role in self.arguments.items()})
        first = result[0] if isinstance(result, (tuple, list)) and len(result) else result
        first = first.get("loss") if isinstance(first, Mapping) else first
        if not isinstance(first, Tensor) or first.numel() != 1 or _is_odd(first):
            raise self._no_loss(first)
        return first.reshape(())

    @contextmanager
    def _calling(self, given: Mapping[str, Tensor], step: str = "") -> Iterator[None]:
        """Turns what the function raises in a `step`, SystemExit too, into AuditError."""
        try:
            with staying(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", r"std\(\): degrees of freedom")  # of one row
                yield
        except (KeyboardInterrupt, Untraced):
            raise
        except BaseException as error:  # also SystemExit, which os._exit raises here
            raise self._refusal(given, step, error) from error

    def _refusal(self, given: Mapping[str, Tensor], step: str, error: BaseException) -> AuditError:
        text, place = str(error), where(self.call, error)
        if IN_PLACE in text:
            return AuditError(
                f"'{self.name}' changes {self.moves} in place",
                required="inputs that stay as they are",
                found=place,
                remedy="write x = x.clamp(...) for x.clamp_(...)",
            )
        if "modified by an inplace operation" in text:
            return AuditError(
                f"'{self.name}' changes in place what its gradient needs",
                required=DIFFERENTIABLE,
                found=text.partition(" Hint:")[0].partition("operation: ")[2],
                remedy="write r = r.clamp(...) for r.clamp_(...)",
            )
        first, shapes = (
            next(iter(text.splitlines()), ""),
            listed(f"{role} {list(t.shape)}" for role, t in given.items()),
        )
        if step and isinstance(error, RuntimeError) and not place:  # of autograd itself: a graph is gone
            what = f"the loss of '{self.name}' has no gradient: {first}"
            return AuditError(what, required=DIFFERENTIABLE, remedy="does it call backward, or define one?")
        return AuditError(
            f"'{self.name}' raises {type(error).__name__}{step}{f': {first}' if first else ''}",
            required=DIFFERENTIABLE if step else f"a loss of {shapes}, all on the CPU",
            found=place,
            remedy="mend it there; or audit a function of three lines that calls it with other arguments",
        )

    def _no_loss(self, result: Any) -> AuditError:
        found, remedy = f"{an(type(result).__name__)}", "return the mean or the sum, as the trainer takes it"
        if isinstance(result, Tensor) and result.numel() == 1:
            found = f"{result.dtype} on the device {result.device.type}, {str(result.layout).partition('.')[2]}"
            remedy = "return a strided tensor of floats on the CPU, as the arguments are"
        elif isinstance(result, Tensor):
            found = f"a tensor of shape {list(result.shape)}"
        elif isinstance(result, (int, float, np.number)):
            found = f"the number {result:.6g}, {an(type(result).__name__)} without a gradient"
            remedy = "return the tensor itself, without .item() or float()"
        elif result is None:
            found, remedy = "None", "end the function with `return loss`; if it returns a mapping, call the loss 'loss'"
        return AuditError(
            f"'{self.name}' does not return a loss",
            required="a tensor of one real number, or a tuple that begins with it, or a mapping with the key 'loss'",
            found=found,
            remedy=remedy,
        )

    def variables(self, batch: Batch) -> dict[str, Any]:
        """The variables of a batch, as its tensors: of a token its row and place, which no padding changes."""

        def tokens(role: str) -> Any:
            named = objects(atom("var", role, *place) for place in batch.places)
            if self.is_packed:
                return named
            mask = batch.mask.numpy()
            found = np.empty(mask.shape, object)
            for place in np.ndindex(mask.shape):
                found[place] = atom("var", role, "under the mask", *place)
            found[mask] = named
            return found

        def given(role: str) -> Any:
            if self.per_token:
                return tokens(role)
            return objects(atom("var", role, row) for row in range(len(batch.rows)))

        made = {**dict.fromkeys(UNDER, tokens), **dict.fromkeys(("advantages", "rewards"), given)}
        return {role: variables(role) for role, variables in made.items() if role in self.roles}

    def traced(self, batch: Batch, watch: Watch | None = None) -> Traced:
        """The program on a batch. Raises Untraced if it has none."""
        made = trace(self.loss, self.given(batch), self.variables(batch), watch)
        each = made.coefficients[self.moves]
        made.tokens = list(each if self.is_packed else each[batch.mask.numpy()])
        return made

    def formulas(self, batch: Batch) -> list[Any]:
        """The coefficients of tokens, as formulas. Raises Untraced if there are none."""
        made = self.programs.get(batch) or self.traced(batch)
        if isinstance(made, Untraced):
            raise made
        return made.tokens

    @cached_property
    def structures(self) -> list[Batch]:
        """Small batches, one of each structure that the function takes, with a gradient if there is one."""
        found = []
        for seed, (lengths, groups) in enumerate(OF_REWARDS if self.reads_rewards else OF_ADVANTAGES):
            some = [drawn(10 * k + seed, lengths, 0.3, groups=groups) for k in range(1, 6)]
            with suppress(AuditError):
                found.append(next((b for b in some if self.evaluate(b).coefficients.any()), some[0]))
        return found

    @cached_property
    def programs(self) -> dict[Batch, Traced | Untraced]:
        """The program on each structure, or why there is none: autograd may have other numbers."""
        found: dict[Batch, Traced | Untraced] = {}
        for batch in self.structures:
            other = drawn(0, batch.lengths, 0.3, groups=[r.group for r in batch.rows])
            try:
                made = self.traced(batch)
                mine = evaluate(made.tokens, numbers_of(other, self.per_token))
                right = self.evaluate(other).coefficients
                close = TRACED * np.abs(right).max(initial=0) + ROUNDING
                is_right = bool((np.abs(np.array(mine, float) - right) <= close).all())
                found[batch] = made if is_right else Untraced("its program has other numbers than autograd")
            except Untraced as error:
                found[batch] = error
        return found

    @property
    def untraced(self) -> str:
        """Why the function has no program on any structure; '' if it has one."""
        made = (p.coefficients[self.moves].flat for p in self.programs.values() if isinstance(p, Traced))
        if any(free(c) for each in made for c in each):
            return ""
        return next((str(p).splitlines()[0] for p in self.programs.values() if isinstance(p, Untraced)), "")

    def evaluate(self, batch: Batch, dtype: torch.dtype = WIDE) -> Found:
        """The loss and the gradient; properties ask for those of one batch many times."""
        if (batch, dtype) not in self._found:
            self._found[batch, dtype] = self._evaluated(batch, dtype)
        return self._found[batch, dtype]

    def _evaluated(self, batch: Batch, dtype: torch.dtype = WIDE) -> Found:
        given = self.given(batch, dtype)
        loss, gradients = self._gradients(given, {self.moves})
        coefficients = -gradients.get(self.moves, torch.zeros_like(given[self.moves])).double()
        value = float(loss)
        if self.is_packed:
            return Found(value, coefficients.numpy(), np.zeros(0))
        mask = batch.mask
        return Found(value, coefficients[mask].numpy(), coefficients[~mask].numpy())

    def halves(self, batch: Batch) -> set[torch.dtype]:
        """The dtypes of 16 bits to which the function rounds numbers of float64 inputs."""
        with Halves() as seen:
            self._evaluated(batch)
        return seen.found

    def _gradients(self, given: Mapping[str, Tensor], of: set[str]) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, and its gradient in each of the arguments that has one."""
        leaves = {r: given[r].requires_grad_() for r in sorted(of)}
        loss = self.loss(given)
        return loss.detach(), self.gradients(loss, leaves) if loss.requires_grad else {}

    def gradients(self, loss: Tensor, leaves: Mapping[str, Tensor], again: bool = False) -> dict[str, Tensor]:
        """The gradient in each leaf that has one. `again`: it will be taken once more."""
        with self._calling(leaves, " in its backward pass"):
            found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, retain_graph=again)
            return {r: g.to_dense() for r, g in zip(leaves, found, strict=True) if g is not None}

    @property
    def reads_rewards(self) -> bool:
        return "rewards" in self.roles and not self.reads_advantages

    @property
    def reads_advantages(self) -> bool:
        return "advantages" in self.roles

    @cached_property
    def whitens(self) -> bool:
        """Whether advantages are standardised inside: scaled and shifted, they give the same gradient; turned, not."""
        if not self.reads_advantages:
            return False
        b = drawn(0, (4, 4, 4, 4), 0.1).on_policy()  # no place is padded, or padded ones would be standardised too
        one, two, turned = (
            self.evaluate(b.mapped(lambda r, k=k, c=c: replace(r, advantage=k * r.advantage + c))).coefficients  # type: ignore[misc]
            for k, c in ((1, 0), (2, 3), (-1, 0))
        )
        same = 1e-4 * np.abs(one).max()  # functions write ÷ (std + 1e-6)
        return bool(np.abs(one - two).max() <= same < np.abs(one - turned).max())

    def _try(self) -> None:
        """Finds out how advantages and the mask are passed, and refuses what no audit can be made of."""
        # pass@4 needs so many rows; none has one token, of which some functions make NaN
        batch = drawn(13, (5, 2, 4, 3, 2, 2, 3, 2), 0.1, groups=(0, 0, 0, 0, 0, 0, 1, 1))
        errors: list[AuditError] = []
        for self.mask_is_bool, self.per_token in itertools.product((False, True), (False, True)):
            try:
                first = self._evaluated(batch)
                break
            except AuditError as error:
                errors.append(error)
        else:
            raise errors[0]
        if not first.is_finite:
            raise AuditError(
                f"'{self.name}' gives {first.value:g} on {batch}",
                required="finite losses and gradients of finite inputs",
                remedy="log-probs are in nats and below 0, the mask is 1 at tokens: see how the function reads them",
            )
        if not first.coefficients.any() and not self._evaluated(batch.on_policy()).coefficients.any():
            raise AuditError(
                f"the loss of '{self.name}' has no gradient in the {self.moves.replace('log_', 'log-')}",
                required=f"a loss that is differentiable in {self.moves}",
                remedy="does it detach them, call .item(), or run under no_grad?",
            )
        again = self._evaluated(batch)
        if again.value != first.value or not np.array_equal(again.coefficients, first.coefficients):
            raise AuditError(
                f"'{self.name}' gives {first.value!r}, and then {again.value!r} for the same inputs",
                required="the same result for the same inputs",
                remedy="does it draw random numbers, or change what it reads?",
            )


def numbers_of(batch: Batch, per_token: bool) -> dict[Any, float]:
    """The numbers of the variables of a batch."""
    found = {}
    for i, row in enumerate(batch.rows):
        for role, value in (("advantages", row.advantage), ("rewards", row.reward)):
            for place in [(i, t) for t in range(len(row))] if per_token else [(i,)]:
                found[atom("var", role, *place)] = value
    each = ((role, zip(batch.places, batch.of(role).tolist(), strict=True)) for role in UNDER)
    return found | {atom("var", role, *place): v for role, numbers in each for place, v in numbers}


def _arguments(call: Callable[..., Any], name: str) -> dict[str, str]:
    """The role of every argument that is passed."""
    if inspect.isclass(call):
        raise AuditError(
            f"'{name}' is a class",
            required="a function of tensors, or an object of the class that can be called",
            remedy=f"in its file write loss = {call.__name__}(...), and audit FILE.py:loss",
        )
    try:
        found = inspect.signature(getattr(call, "forward", call)).parameters.values()
    except (TypeError, ValueError):
        remedy = "pass the function itself, as in audit(my_loss)"
        raise AuditError(
            f"'{name}' is no function", required="a function of tensors", found=_is(call), remedy=remedy
        ) from None
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    usable = [p for p in found if p.kind in kinds]
    roles = {p.name: NAMES[p.name] for p in usable if p.name in NAMES}
    needed = [p.name for p in usable if p.default is inspect.Parameter.empty]
    if not roles and len(needed) == len(FIRST_FOUR):
        roles = dict(zip(needed, FIRST_FOUR, strict=True))
    unknown = [n for n in needed if n not in roles]
    example = "def audited(log_probs, old_log_probs, advantages, mask): return my_loss(...)"
    if unknown or any(p.kind is inspect.Parameter.POSITIONAL_ONLY for p in found):
        raise AuditError(
            f"'{name}' has the argument{'s' if len(unknown) > 1 else ''} {listed(unknown)}, of which the name says "
            "nothing"
            if unknown
            else f"'{name}' has arguments without names",
            required=f"arguments called {listed(ROLES)}, or one of their usual other names",
            found=f"{_is(call)}, which is called with ({', '.join(p.name for p in found)})"
            if isinstance(call, torch.nn.Module)
            else "",
            remedy=f"audit a function that passes them: {example}",
        )
    twice = {r for r in roles.values() if list(roles.values()).count(r) > 1}
    if twice:
        both = listed(n for n, r in roles.items() if r in twice)
        raise AuditError(f"'{name}' has {both} for one thing", required="one argument for each", remedy=example)
    either = (("log_probs", "values"), ("mask", "cu_seqlens"))
    if missing := [some[0] for some in either if not {*some} & {*roles.values()}]:
        raise AuditError(
            f"'{name}' has no argument {listed(missing)}",
            required="log_probs (or a critic's values) and mask (or cu_seqlens)",
            found=f"({', '.join(p.name for p in found)})",
            remedy=f"audit a function that passes them: {example}",
        )
    return roles


def _is_odd(loss: Tensor) -> bool:
    """Whether a number has no gradient as the log-probs have: it is sparse, complex, whole, or without memory."""
    return loss.layout is not torch.strided or not loss.is_floating_point() or loss.device.type == "meta"


def _is(value: object) -> str:
    """`a dict`; `a Sequential, a torch.nn.Module`."""
    return an(type(value).__name__) + (", a torch.nn.Module" if isinstance(value, torch.nn.Module) else "")


def where(call: Any, error: BaseException) -> str:
    """The last line of the function's own file that an error came through: `line 7 of my.py`; '' if there is none."""
    file = file_of(call)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"line {lines[-1]} of {Path(file).name}" if lines else ""


def file_of(call: Any) -> str:
    return str(getattr(getattr(call, "__code__", None), "co_filename", ""))


def name_of(call: Any) -> str:
    """The name of a function for messages; that of a lambda is its line."""
    name = str(getattr(call, "__name__", "the function"))
    code = getattr(call, "__code__", None)
    return name if name != "<lambda>" or code is None else f"the lambda in line {code.co_firstlineno}"
