"""docs/replanning.md names every reason and outcome that the code can give."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from rap_operator.replanning.values import Unusable

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "replanning.md").read_text()
SOURCES = sorted((ROOT / "operator" / "rap_operator" / "replanning").glob("*.py"))


def reasons_in_code() -> set[str]:
    hints = Unusable.__annotations__["reason"]
    found = set(re.findall(r'"(\w+)"', hints)) | set(get_args(hints))
    for path in SOURCES:
        text = path.read_text()
        found |= set(re.findall(r'Held\(reason="(\w+)"', text))
        found |= {word for pair in re.findall(r'decided\(\s*"(\w+)",\s*"(\w+)"', text) for word in pair}
        found |= set(re.findall(r'_return\(case, change, "(\w+)"', text))
        found |= set(re.findall(r'quiet\("\w+", "(\w+)"', text))
    return {reason for reason in found if reason}


def test_the_page_names_every_reason() -> None:
    reasons = reasons_in_code()
    assert len(reasons) > 35
    assert sorted(reason for reason in reasons if not re.search(rf"\b{reason}\b", PAGE)) == []
