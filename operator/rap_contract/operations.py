"""How a job is kept running: replanning, restarts, deadlines."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rap_contract.model import Model

Seconds = Annotated[int, Field(ge=0, le=31_536_000)]
ExitCode = Annotated[int, Field(ge=1, le=255)]


class Replanning(Model):
    """When measurements change the plan of a running job."""

    mode: Literal["Auto", "Propose", "Observe", "Off"] = "Auto"
    """Act; wait for an annotation; only report; nothing."""
    window_seconds: Seconds = 120
    """Length of a full window of measurements; no decision on less."""
    stabilization_seconds: Seconds = 300
    """No decision for so long after a start or a switch."""
    min_interval_seconds: Seconds = 600
    """Shortest time between two switches."""
    threshold: float = Field(default=0.05, ge=0, le=1)
    """Smallest predicted gain, as a share of the step."""
    hysteresis: float = Field(default=0.02, ge=0, le=1)
    """How far below the threshold a trigger must fall before it may fire again."""
    max_lag_seconds: Seconds = 300
    """No optional switch while the stream is further behind."""
    effectiveness: float = Field(default=0.1, ge=0, le=1)
    """Smallest share of the promised gain a switch must deliver, or the last stable plan returns."""
    history: int = Field(default=10, ge=1, le=100)
    """Decisions kept in status."""
    blackout: Annotated[list[str], Field(max_length=32)] = []
    """Times without switches, as `cron-expression/minutes` in UTC: `0 18 * * 5/600`."""


class RestartRule(Model):
    """What to do about a failure: the first rule that matches decides."""

    exit_codes: Annotated[list[ExitCode], Field(max_length=64)] = []
    """Exit codes that match; empty matches any."""
    reasons: Annotated[list[str], Field(max_length=64)] = []
    """Reasons that match, such as OOMKilled; empty matches any."""
    action: Literal["Restart", "Ignore", "Fail"]
    """Restart and count it; restart without counting; fail the job."""


class RestartPolicy(Model):
    """How often and how fast a failed job starts again."""

    max_restarts: int = Field(default=5, ge=0, le=10_000)
    """Failures after which the job fails; disruptions do not count."""
    delay_seconds: Seconds = 10
    """Delay before the first restart, doubled with each further one."""
    max_delay_seconds: Seconds = 600
    """Longest delay."""
    reset_after_seconds: Seconds = 3600
    """Healthy time after which count and delay start anew."""
    rules: Annotated[list[RestartRule], Field(max_length=32)] = []
    """Exceptions, first match first."""
