"""The entry point `verl.plugins`: verl imports this module, which registers our policy loss.

verl logs a failed plugin only at DEBUG. So this module does not fail: it logs the error at ERROR, and registers a
policy loss of the same name that raises it.
"""

from __future__ import annotations

import logging
from typing import Any, NoReturn


def register() -> None:
    """Register `policy_loss.loss_mode=fibration` with verl; if it cannot be loaded, register a loss that raises."""
    from verl.trainer.ppo.core_algos import register_policy_loss

    try:
        from fibration.trainers.verl.loss import NAME, policy_loss
    except Exception as error:
        logging.getLogger(__name__).exception("fibration's policy loss cannot be loaded; loss_mode=fibration will fail")
        register_policy_loss("fibration")(_failing(error))
    else:
        register_policy_loss(NAME)(policy_loss)


def _failing(error: Exception) -> Any:
    def policy_loss(**_: Any) -> NoReturn:
        raise RuntimeError(f"fibration's policy loss cannot be loaded: {type(error).__name__}: {error}") from error

    return policy_loss


try:
    register()
except Exception:
    logging.getLogger(__name__).exception("fibration cannot register its policy loss: loss_mode=fibration is not known")
    raise
