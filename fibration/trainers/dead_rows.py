"""Reasons to train on rows without a gradient of the policy loss: something else reads them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator

from torch import nn

from fibration.language.hierarchy import Hierarchy


def of_loss(hierarchy: Hierarchy) -> Iterator[str]:
    """Terms of the loss that rows get without an advantage, and assumptions that a part of the rows could break."""
    for name in hierarchy.penalties:
        yield f"every row gets the penalty '{name}' of '{hierarchy.name}'"
    for assumed in hierarchy.assume:
        yield f"'{hierarchy.name}' assumes {assumed!r} of all rows"
    for of, over in hierarchy.others:
        yield f"'{hierarchy.name}' compares each {of} with the others of its {over}"


def of_model(model: nn.Module) -> Iterator[str]:
    """Layers in which a row changes the outputs of other rows."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            yield f"rows share the statistics of the layer '{name}', a {type(module).__name__}"
        for word, value in vars(module).items():
            if "capacity" in word and isinstance(value, (int, float)) and not isinstance(value, bool):
                yield f"rows share the places of an expert in '{name}' ({word}={value})"


def log(reasons: Collection[str]) -> None:
    """Log why all rows are trained on, if there are reasons."""
    if reasons:
        logging.getLogger(__name__).warning("all rows are trained on, dead rows too: %s", "; ".join(reasons))
