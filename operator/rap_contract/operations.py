"""How a job is kept running: replanning, restarts, deadlines."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rap_contract.model import Model

Seconds = Annotated[int, Field(ge=0, le=31_536_000)]
ExitCode = Annotated[int, Field(ge=1, le=255)]
Share = Annotated[float, Field(ge=0, le=1)]
Ratio = Annotated[float, Field(ge=0, le=100)]
Blackout = Annotated[str, Field(max_length=128, pattern=r"^\S+( +\S+){4}/[1-9][0-9]{0,4}$")]
"""Five fields of cron and a number of minutes; the operator reads the fields."""


class Triggers(Model):
    """What makes the operator look for another plan; 0 turns one off."""

    exposed_ratio: Share = 0.1
    """Share of the step that waits for preprocessing."""
    prediction_ratio: Ratio = 0.15
    """Measured over predicted step, against what it was when the plan proved itself."""
    workload_ratio: Ratio = 0.1
    """Change of a feature group's mean list length, or of its null share, since the plan was made."""
    capacity_ratio: Ratio = 0.25
    """Change of the capacity a window of the step has left over, since the plan was made."""
    freshness_seconds: Seconds = 0
    """Rows are older than this while the accelerator idles."""
    idle_ratio: Share = 0.5
    """The accelerator idles when it is busy for a smaller share than this."""


class Replanning(Model):
    """When measurements change the plan of a running job."""

    mode: Literal["Auto", "Propose", "Observe", "Off"] = "Auto"
    """Act; wait for an annotation; only report; nothing."""
    window_seconds: Annotated[int, Field(ge=1, le=86_400)] = 120
    """Length of a full window of measurements; no decision on less."""
    stabilization_seconds: Seconds = 300
    """Measurements of so long after a start or a switch are not used."""
    hold_seconds: Seconds = 300
    """A trigger counts once it has been over its bound for so long: bursts pass by themselves."""
    min_interval_seconds: Seconds = 600
    """Shortest time between two switches, and between two searches that found nothing better."""
    max_per_day: int = Field(default=12, ge=1, le=1000)
    """Most switches in 24 hours, returns not counted."""
    threshold: Share = 0.02
    """Smallest predicted gain, as a share of the step."""
    hysteresis: Share = 0.02
    """How far below its bound a trigger must fall before it may fire again."""
    payback_seconds: Seconds = 3600
    """Time in which the predicted gain must be worth more than the switch costs."""
    price_seconds: float = Field(default=5.0, ge=0, le=3600)
    """Training time a switch costs, until it was measured."""
    plausible_ratio: Ratio = 0.4
    """Largest error of the predicted step of the plan in force: beyond it model or metrics are wrong. 0: any is taken."""
    max_lag_seconds: Seconds = 300
    """No optional switch while the stream is further behind."""
    confirm_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    """A plan that the ranks have not taken after so long is withdrawn."""
    effectiveness: Share = 0.1
    """Smallest share of the promised gain a switch must deliver, or the last stable plan returns."""
    remember_seconds: Seconds = 86_400
    """A plan that was withdrawn, returned from or rejected is not tried again for so long."""
    proposal_seconds: Annotated[int, Field(ge=1, le=31_536_000)] = 3600
    """A proposal nobody answered is dropped after so long."""
    history: int = Field(default=10, ge=1, le=100)
    """Decisions kept in status."""
    triggers: Triggers = Triggers()
    """What makes the operator look for another plan."""
    blackout: Annotated[list[Blackout], Field(max_length=32)] = []
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
