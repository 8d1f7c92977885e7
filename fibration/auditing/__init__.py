"""Which loss a function of torch is, and what is wrong with it: it is called on small batches, and read as no formula.

`function.py` calls it, `battery.py` has the batches. `identify.py` finds the declared loss that it is, with the
parameters of `fit.py`. `soundness.py` asks what any loss owes, `features.py` what tells losses apart. `report.py` says
what was found. `step.py` compares the gradient of one optimizer step with that of a declared loss.

May import: `escaping`, `errors`, `language`, `compiler`, `runtime`.
"""

from fibration.auditing.beside import StepAudit
from fibration.auditing.call import Audit, audit
from fibration.auditing.step import audit_step

__all__ = ["Audit", "StepAudit", "audit", "audit_step"]
