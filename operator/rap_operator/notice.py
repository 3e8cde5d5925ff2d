"""What a pass has to tell whoever looks at the job. A value only; `events` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Something worth an Event."""

    reason: str
    message: str
    level: Literal["Normal", "Warning"] = "Normal"
