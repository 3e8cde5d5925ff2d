"""What is due by the first rank's clock. Time is an argument; the other ranks only follow its messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True)
class Clock:
    """When checkpoint, report and partial step are due. Monotonic seconds."""

    checkpoint_every_s: float
    report_every_s: float
    max_wait_s: float
    checkpointed_s: float
    reported_s: float
    stepped_s: float
    """When the last step was decided."""

    @classmethod
    def starting(cls, now_s: float, *, checkpoint_every_s: float, report_every_s: float, max_wait_s: float) -> Clock:
        return cls(
            checkpoint_every_s=checkpoint_every_s,
            report_every_s=report_every_s,
            max_wait_s=max_wait_s,
            checkpointed_s=now_s,
            reported_s=now_s,
            stepped_s=now_s,
        )

    def checkpoint_due(self, now_s: float) -> bool:
        return now_s - self.checkpointed_s >= self.checkpoint_every_s

    def report_due(self, now_s: float) -> bool:
        return now_s - self.reported_s >= self.report_every_s

    def flush_due(self, now_s: float) -> bool:
        return now_s - self.stepped_s >= self.max_wait_s
