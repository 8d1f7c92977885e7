"""Slips of the kind that people make, for `mutations.py`: a file per room of the library, and one for the studies."""

from slips import (
    auditing,
    backends,
    compiler,
    configs_trl,
    configs_verl,
    head,
    language,
    laws,
    laws_proof,
    laws_witness,
    outside,
    runtime,
    runtime_index,
    runtime_ranks,
    specs,
    studies,
    trainers,
)
from slips.slip import Slip

ROOMS = (
    language,
    laws,
    laws_proof,
    laws_witness,
    compiler,
    backends,
    head,
    auditing,
    configs_trl,
    configs_verl,
    runtime,
    runtime_index,
    runtime_ranks,
    trainers,
    specs,
    outside,
    studies,
)
SLIPS: tuple[Slip, ...] = tuple(slip for room in ROOMS for slip in room.SLIPS)

__all__ = ["ROOMS", "SLIPS", "Slip"]
