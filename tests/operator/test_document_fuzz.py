"""The short run of `make fuzz`, which judges a million documents."""

from __future__ import annotations

from operator_world.document_fuzz import judge_all


def test_a_thousand_damaged_documents_are_judged_without_a_traceback() -> None:
    counts, tracebacks, _ = judge_all(range(1_000))
    assert tracebacks == []
    assert counts["valid"] > 100  # or the damage would always be found at the door
    assert counts["refused"] > 500
