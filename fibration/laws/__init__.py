"""The laws of a fibration gating hierarchy, which must hold for all sizes at once, in a folder per question.

A law is a statement, a procedure that decides it (`NAME.py`) and a search for a counterexample (`NAME_search.py`).
`catalogue.py` lists the laws; `verify.py` asks them: foundations first, then kernels, decomposition, gates, and what
follows from them together. `facts/` certifies what no law asks, `kept.py` keeps verdicts and facts.

May import: `errors`, `cache`, `language`.
"""

from fibration.laws.catalogue import LAWS

__all__ = ["LAWS"]
