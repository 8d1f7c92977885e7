"""What a hierarchy claims of every batch, checked on one: that parallel paths agree, and what it assumes."""

from __future__ import annotations

from fibration.index import Index


def check(index: Index) -> None:
    """Refuse a batch that breaks what proofs rest on: HierarchyIndexError naming the element."""
