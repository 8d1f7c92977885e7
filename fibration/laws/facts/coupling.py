"""The fact `coupling`: which rows a micro-batch needs together. The compiler decides it, from the compiled program."""

from __future__ import annotations

from fibration.compiler.coupling import coupling_of
from fibration.language.expressions import ExpressionTooLarge
from fibration.language.hierarchy import Hierarchy
from fibration.language.report import NOTE, WARNING, Fact


def coupling(hierarchy: Hierarchy) -> Fact:
    """An exception of the compiler is a fact that is not certified. So is a loss too large to be compiled."""
    try:
        found = coupling_of(hierarchy)
    except ExpressionTooLarge as error:
        return Fact("coupling", "hierarchy", "not certified", f"{error.what} to be compiled")
    except MemoryError:
        raise
    except Exception as error:
        from fibration.laws.law import FILE_AN_ISSUE, INTERNAL_ERROR, internal_error

        reason = internal_error("the fact 'coupling'", error)
        return Fact("coupling", "hierarchy", f"not certified: {INTERNAL_ERROR}", f"{reason}; {FILE_AN_ISSUE}", WARNING)
    if found.is_row_local:
        why = "a row's coefficients and part of J need its log-probs alone: micro-batches of rows need no second pass"
    else:
        why = "a micro-batch has all of these rows; else a pass over all rows of the step comes first"
    return Fact("coupling", "hierarchy", str(found), why, NOTE)
