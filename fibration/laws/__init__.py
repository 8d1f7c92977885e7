"""The laws of a fibration gating hierarchy, in a folder per question. A law must hold for batches of every size.

A law is a statement, a procedure that decides it (`NAME.py`) and a search for a counterexample (`NAME_search.py`).
`catalogue.py` lists the laws. `verify.py` decides them: foundations first, then kernels, decomposition, gates, and what
follows from them together. `facts/` certifies facts that no law states. `kept.py` caches verdicts and facts.

May import: `errors`, `cache`, `language`, and of `compiler` the IR, `lower` and its adjoint: verdicts rest on no pass,
plan or backend. The fact `coupling` is the compiler's own.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """`LAWS`, which loads every proof, and sympy with them."""
    if name == "LAWS":
        from fibration.laws.catalogue import LAWS

        return LAWS
    raise AttributeError(f"module '{__name__}' has no attribute {name!r}")
