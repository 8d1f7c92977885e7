"""`fibration.audit_step`: the gradient of one optimizer step, as a trainer makes it, beside the declared loss's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from fibration.auditing.beside import Declared, StepAudit, beside
from fibration.auditing.recorded import COARSE, Recorded, as_found, local, trained
from fibration.errors import AuditError, FibrationError

Loss = Callable[[], Tensor | Iterable[Tensor]]


def audit_step(
    model: nn.Module,
    step: Callable[[], Any],
    loss: Loss,
    *,
    group: Any = None,
    move: float = 0.0,
    max_grad_norm: float | None = None,
    tolerance: float | None = None,
) -> StepAudit:
    """The gradient of one optimizer step beside that of the declared loss on the whole batch: see `StepAudit`.

    - `step`: takes no arguments, and makes the gradients of one optimizer step as the trainer does: forward and
      backward of every micro-batch, clipping, and `optimizer.step()` if you like. The gradient is read as an optimizer
      that has the model's parameters begins its step, or else when `step` returns. The optimizer changes nothing.
    - `loss`: takes no arguments, and returns the declared loss of the whole batch with a graph, such as
      `op.loss(...).loss`. If the batch is too large for one graph: a generator of losses that add up, one per
      micro-batch, as `index.micro(rows)` makes them. The report then names a micro-batch that is left out.
    - `group`: the process group of ranks that train together. Each returns its own share from `loss`; the shares'
      gradients are added up. All ranks call this function.
    - `move`: by how much weights are changed at random meanwhile, relative to their root mean square. Log-probs that
      the trainer keeps from an earlier time then differ at the first step too, where all ratios are 1.
    - `max_grad_norm`: to which the trainer clips. A norm of one digit, such as 0.5, is recognised without it.
    - `tolerance`: relative, of a parameter's gradient. Default: by the coarsest dtype of a layer's output.

    Meanwhile dropout is off. Afterwards weights, buffers, gradients, training modes and generators of random numbers
    are as before. Other things that `step` changes are not, such as a data loader or a scheduler. It needs memory for a
    copy of the weights and three of the gradients. It works under `torch.no_grad()`, with frozen, tied and sharded
    parameters (FSDP2), and in bfloat16. It cannot read optimizers that keep gradients of their own (DeepSpeed ZeRO,
    Megatron).

    Raises AuditError if the model has nothing to train, if `step` makes no gradient or raises, and if `loss` returns no
    loss.
    """
    _check(model, group)
    with torch.inference_mode(False), torch.enable_grad():
        with as_found(model, move):
            with Recorded(model) as recorded:
                with _calling("step"):
                    step()
                recorded.read()
            _check_read(recorded)
        with as_found(model, move):
            declared = declared_gradients(model, loss, group)
    return beside(recorded, declared, group=group, max_grad_norm=max_grad_norm, tolerance=tolerance)


def declared_gradients(model: nn.Module, loss: Loss, group: Any = None) -> Declared:
    """The gradient of a loss, or of losses that add up, and of each of these sampled elements.

    It may leave gradients in the parameters: run it inside `as_found`.
    """
    is_sharded = any(hasattr(p, "to_local") for p in trained(model).values())
    synced = model.no_sync() if isinstance(model, nn.parallel.DistributedDataParallel) else nullcontext()
    with synced:
        try:  # DDP hears of no gradient that autograd.grad returns
            own, parts = (_accumulated if is_sharded else _returned)(model, loss)
        except RuntimeError as error:
            if "use_reentrant" not in str(error):  # such checkpoints refuse autograd.grad
                raise
            own, parts = _accumulated(model, loss)
    whole = own if group is None else {name: _summed(g, model, name, group) for name, g in own.items()}
    if not any(g is not None and bool((g != 0).any()) for g in whole.values()):
        raise AuditError(
            "the declared loss has no gradient in the parameters of the model",
            required="a loss of the model's own log-probs, whose graph reaches the parameters",
            remedy="does `loss` compute log-probs of this model, and of rows with advantages that are not 0?",
        )
    return Declared(whole, parts, own)


def _returned(model: nn.Module, loss: Loss) -> tuple[dict[str, Tensor | None], list[dict[str, Tensor]]]:
    recorded, parts = Recorded(model), list[dict[str, Tensor]]()
    found: dict[str, Tensor | None] = dict.fromkeys(recorded.named)
    for part in _parts(loss):
        each = torch.autograd.grad(part, list(recorded.named.values()), allow_unused=True)
        made = {name: g for name, g in zip(recorded.named, each, strict=True) if g is not None}
        parts.append({name: recorded.sample(name, g) for name, g in made.items()})
        for name, g in made.items():
            wide = g.float() if g.dtype in COARSE else g
            before = found[name]
            found[name] = wide if before is None else before + wide
    return found, parts


def _accumulated(model: nn.Module, loss: Loss) -> tuple[dict[str, Tensor | None], list[dict[str, Tensor]]]:
    for p in model.parameters():
        p.grad = None
    with Recorded(model) as recorded:
        count = 0
        for part in _parts(loss):
            part.backward()  # type: ignore[no-untyped-call]
            count += 1
        recorded.read()
    return recorded.found, recorded.passes if len(recorded.passes) == count else []


def _summed(gradient: Tensor | None, model: nn.Module, name: str, group: Any) -> Tensor:
    """The sum over ranks of a gradient; a sharded one is averaged already."""
    import torch.distributed as dist

    p = trained(model)[name]
    found = torch.zeros_like(local(p)) if gradient is None else gradient
    ranks = dist.get_world_size(group)
    if hasattr(p, "to_local"):
        return found * ranks
    found = found.float() if found.dtype in COARSE else found.clone()
    dist.all_reduce(found, group=group)
    return found


def _parts(loss: Loss) -> Iterable[Tensor]:
    with _calling("loss"):
        result = loss()
        for part in [result] if isinstance(result, Tensor) else result:
            if not isinstance(part, Tensor) or part.numel() != 1 or not part.requires_grad:
                is_tensor = isinstance(part, Tensor)
                raise AuditError(
                    "`loss` does not return a loss",
                    required="a tensor of one number with a graph, or several that add up",
                    found=f"a tensor of shape {list(part.shape)}" if is_tensor else type(part).__name__,
                    remedy="return op.loss(...).loss, with log-probs of the model that were computed in it",
                )
            yield part.reshape(())


@contextmanager
def _calling(name: str) -> Iterator[None]:
    """Turns what a function of the caller's raises into AuditError."""
    try:
        yield
    except FibrationError:
        raise
    except Exception as error:
        raise AuditError(
            f"`{name}` raises {type(error).__name__}: {next(iter(str(error).splitlines()), '')}",
            required="functions without arguments, that run as the trainer's own step does",
            remedy="call it outside of the audit first: its traceback is above this error",
        ) from error


def _check(model: nn.Module, group: Any) -> None:
    if not trained(model):
        raise AuditError(
            "no parameter of the model requires grad",
            required="a model that is trained",
            remedy="pass the model that the optimizer updates",
        )
    if group is None and isinstance(model, nn.parallel.DistributedDataParallel):
        raise AuditError(
            "the model averages gradients over ranks, and `group` is not given",
            required="the process group of the ranks that train together",
            remedy="group=torch.distributed.group.WORLD, and a `loss` that returns this rank's share",
        )


def _check_read(recorded: Recorded) -> None:
    if any(g is not None for g in recorded.found.values()):
        return
    if recorded.passes:
        raise AuditError(
            "`step` cleared its gradients before they could be read",
            required="gradients in the parameters when an optimizer of torch begins its step, or when `step` returns",
            found=f"{len(recorded.passes)} backward passes, and no gradient afterwards",
            remedy="end `step` before zero_grad(), or before an optimizer with gradients of its own",
        )
    raise AuditError(
        "no parameter of the model gets a gradient from `step`",
        required="a step that calls backward on a loss of this model",
        remedy="does the step train a copy of the model, or run under no_grad?",
    )
