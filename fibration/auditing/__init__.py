"""Which loss a function of torch is, and what is wrong with it: its program is recorded, and it is called on batches.

`record.py` makes formulas (`formula.py`) of a function, `reference.py` of a declared loss; `prove.py` says whether they
are equal for all numbers. `identify.py` finds the loss and its parameters. `properties.py` asks what any loss owes, and
what tells losses apart. `declare.py` declares a function for all sizes (`seen.py`). `step.py` compares the gradient of
one optimizer step with a declared one.

May import: `escaping`, `errors`, `language`, `compiler`, `runtime`.
"""

from fibration.auditing.beside import StepAudit
from fibration.auditing.call import Audit, audit
from fibration.auditing.declare import lift
from fibration.auditing.step import audit_step

__all__ = ["Audit", "StepAudit", "audit", "audit_step", "lift"]
