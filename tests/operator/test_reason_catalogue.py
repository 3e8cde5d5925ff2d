"""Every reason the operator can give is in its page, and its permissions are the requests it makes."""

from __future__ import annotations

import re
from pathlib import Path

from rap_operator.failures import REASONS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operator.md").read_text()
SOURCES = sorted((ROOT / "operator" / "rap_operator").glob("*.py"))


def reasons_in_code() -> set[str]:
    found: set[str] = set(REASONS.values())
    for path in SOURCES:
        text = path.read_text()
        found |= set(re.findall(r'(?:Said|Acceptance|cls)\("(?:True|False|Unknown)", "(\w+)"', text))
        found |= set(re.findall(r'reason="(\w+)"', text))
        found |= set(re.findall(r'_disrupted\("(\w+)"', text))
        if path.name == "conditions.py":
            found |= set(re.findall(r'return "(\w+)"', text))
    return found


def test_the_page_names_every_reason() -> None:
    reasons = reasons_in_code()
    assert len(reasons) > 40
    assert sorted(reason for reason in reasons if not re.search(rf"\b{reason}\b", PAGE)) == []
