"""The training loop: agree, prepare the next step, train this one, report and save when it is due.

Everything it uses is given to it; it reads no environment, opens nothing and knows no file format.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import torch.distributed as dist
from rap_contract.job import RAPJobSpec
from rap_contract.pod import ExitCode
from rap_contract.problem import InvalidDocument

from rap_trainer.batch import Positions
from rap_trainer.checkpoint.errors import CheckpointError, WriteFailed
from rap_trainer.checkpoint.writer import Written
from rap_trainer.display import Display, Event, Progress
from rap_trainer.program.columns import BatchError
from rap_trainer.replan.remeasuring import Remeasuring
from rap_trainer.replan.switcher import Switcher
from rap_trainer.step.agreement import Decision, Exchange, Message, Messages, decide, starved
from rap_trainer.step.clock import Clock
from rap_trainer.step.ledger import Ledger
from rap_trainer.step.loss_watch import LossWatch
from rap_trainer.step.meters import Meters
from rap_trainer.step.reports import Reports, Standing
from rap_trainer.step.runtime import Runtime
from rap_trainer.step.saving import Saving
from rap_trainer.step.signals import StopRequest
from rap_trainer.step.stages import StepState
from rap_trainer.stream.source import DataBudgetExceeded, Hearing, Monitored, Offer, Source, SourceError
from rap_trainer.world import World

log = logging.getLogger(__name__)

REPORT_EVERY_S = 1.0
IDLE_S = 0.01
"""Pause when no step could be made: short against spec.trainer.maxWaitMs, long against an exchange (0.2 ms here)."""
SAY_STARVED_S = 30.0
"""Without a step, the reason is said this often; a followed directory may be quiet for long."""
BROKEN = 1
"""Exit code of an unexpected error: Python's own for an uncaught exception."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Why the loop ended."""

    code: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What the loop works with."""

    world: World
    source: Source
    runtime: Runtime
    saving: Saving
    watch: LossWatch
    reports: Reports
    stop: StopRequest
    display: Display
    meters: Meters
    attempt: int
    ledger: Ledger | None = None
    switcher: Switcher | None = None
    """Without one the plan never changes."""
    remeasuring: Remeasuring | None = None
    """Without one the profile stays as it was measured first."""


class Loop:
    """The steps of one attempt. Runs once."""

    def __init__(self, spec: RAPJobSpec, tools: Tools, *, step: int, rows: int) -> None:
        self._spec = spec
        self._tools = tools
        self._exchange = Exchange(tools.world)
        self._hearing = tools.source if isinstance(tools.source, Hearing) else None
        self.step = step
        """Optimizer steps in the job's whole life."""
        self.rows = rows
        """Rows of all ranks trained in the job's whole life."""
        self.last: Progress | None = None
        self._pending: StepState | None = None
        self._failure: Ending | None = None
        self._error: Exception | None = None
        self._starved_s = 0.0
        self._starved_said_s = 0.0
        self._full_rows = spec.trainer.batch_size_per_gpu * tools.world.size
        self._ready: tuple[int, ...] = ()
        self._clock = Clock.starting(
            time.monotonic(),
            checkpoint_every_s=spec.checkpoint.interval_seconds,
            report_every_s=REPORT_EVERY_S,
            max_wait_s=spec.trainer.max_wait_ms / 1e3,
        )

    @property
    def saved_step(self) -> int | None:
        """Step of the newest complete checkpoint."""
        return self._tools.saving.saved_step

    def run(self) -> Ending:
        """Trains until the source ends, a stop is asked for, or something fails. Raises PeerLost."""
        tools = self._tools
        tools.reports.begin(self.step, self.rows)
        while True:
            with tools.runtime.timer.host("data"):
                decision = self._agree()
                if decision.failure == ExitCode.DIVERGED and self._roll_back():
                    continue
                if decision.failure:
                    return self._failed(decision.failure)
                positions = self._settled() if decision.checkpoint else {}
                raw_shares = decision.shares
            upcoming = self._prepare(raw_shares)
            self._train(self._pending)
            if upcoming is not None and upcoming.error is not None:
                self._fail(upcoming.error)
                upcoming = None
            if tools.switcher is not None:
                tools.switcher.act(switch=decision.switch_plan, drop=decision.drop_plan)
            if decision.measure and tools.remeasuring is not None:
                tools.remeasuring.act(time.monotonic())
                tools.meters.paused()
            sound = not decision.report or self._report()
            if decision.checkpoint and sound:
                self._save(positions)
            self._note(tools.saving.writer.poll())
            if decision.last:
                return self._finish(decision)
            if upcoming is None and self._pending is None:
                self._wait()
            self._pending = upcoming

    def _agree(self) -> Decision:
        source, now_s = self._tools.source, time.monotonic()
        offer = self._offer()
        busy = self._tools.saving.writer.busy
        ready, refused = self._tools.switcher.offer() if self._tools.switcher is not None else (0, 0)
        message = Message(
            rows=offer.rows,
            ended=offer.ended,
            stop=self._tools.stop.asked,
            failure=self._failure.code if self._failure else 0,
            flush=self._clock.flush_due(now_s),
            checkpoint=self._clock.checkpoint_due(now_s) and not busy and self._tools.saving.is_new(self.step),
            report=self._clock.report_due(now_s),
            ready_plan=ready,
            refused_plan=refused,
            measure=self._tools.remeasuring is not None and self._tools.remeasuring.is_due(now_s),
            seen_rows=offer.seen_rows,
            bad_rows=offer.bad_rows,
        )
        planned = self.step + (self._pending is not None)
        messages = self._exchange(message)
        self._ready = messages.rows
        self._hear(messages)
        decision = decide(
            messages,
            room=self._spec.trainer.max_steps is None or planned < self._spec.trainer.max_steps,
            shares=source.shares,
        )
        if decision.report:
            self._clock.reported_s = now_s
        if decision.checkpoint:
            self._clock.checkpointed_s = now_s
        if decision.shares is not None:
            self._clock.stepped_s = now_s
        return decision

    def _offer(self) -> Offer:
        try:
            return self._tools.source.offer()
        except SourceError as error:
            self._fail(error)
            return Offer(rows=0)

    def _hear(self, messages: Messages) -> None:
        if self._hearing is None:
            return
        try:
            self._hearing.hear(*messages.totals())
        except SourceError as error:
            self._fail(error)  # the others hear of it before the next step

    def _prepare(self, shares: tuple[int, ...] | None) -> StepState | None:
        """Takes and preprocesses the next step's rows; a failure is told to the others before they go on."""
        if shares is None:
            return None
        try:
            with self._tools.runtime.timer.host("data"):
                raw = self._tools.source.take(shares)
            self._tools.meters.batch(raw)
            state = self._tools.runtime.prepare(raw)
            if self._tools.ledger is not None:
                state.positions = self._tools.source.positions()
            return state
        except Exception as error:  # the other ranks must hear of it before this one ends
            self._fail(error)
            return None

    def _train(self, state: StepState | None) -> None:
        if state is None:
            return
        tools, step = self._tools, self.step + 1
        if tools.ledger is not None:
            assert state.positions is not None
            tools.ledger.step(step, state.raw.num_rows, state.positions)
        tools.runtime.train(state)
        tools.saving.trained()
        self.step, self.rows = step, self.rows + state.raw.global_rows
        assert state.loss_sum is not None
        tools.watch.add(step, state.loss_sum)
        tools.reports.stepped(state.raw.event_times_s_B, time.time())
        tools.meters.step(state.raw.num_rows, partial=state.raw.global_rows < self._full_rows)
        if state.batch is not None:
            tools.meters.counters(state.batch.counters)
        self._judge_loss()

    def _judge_loss(self) -> None:
        bad_step = self._tools.watch.bad_step
        if bad_step is not None and self._failure is None:
            hint = "lower the learning rates, or bound the dense features with clamp or logit"
            self._tools.meters.divergence("nonfinite")
            self._failure = Ending(code=ExitCode.DIVERGED, reason=f"the loss of step {bad_step} is NaN or Inf; {hint}")

    def _report(self) -> bool:
        """Whether the model counts as sound; the same on every rank."""
        tools = self._tools
        age_s = None if tools.saving.saved_s is None else max(0.0, time.time() - tools.saving.saved_s)
        progress, divergence = tools.reports.take(
            Standing(
                step=self.step,
                rows=self.rows,
                attempt=tools.attempt,
                starved_s=self._starved_s,
                checkpoint_age_s=age_s,
                checkpoint_step=tools.saving.saved_step,
            ),
            tools.source,
        )
        self.last = progress
        tools.display.update(progress)
        if divergence is not None and self._failure is None:
            tools.meters.divergence(divergence.reason)
            self._failure = Ending(code=ExitCode.DIVERGED, reason=str(divergence))
        return divergence is None

    def _settled(self) -> Positions:
        """For a checkpoint, of the rows taken so far. Raises SourceError."""
        self._tools.source.settle()
        return self._tools.source.positions()

    def _save(self, positions: Positions) -> None:
        saving = self._tools.saving
        self._tools.runtime.synchronise_state()
        moment = saving.moment(step=self.step, rows=self.rows, time_s=time.time(), positions=positions)
        self._note(saving.start(moment, self._tools.reports.all_reduce))

    def _note(self, written: Written | None) -> None:
        """What a finished write means for training: nothing but a warning if the disk refused it."""
        if written is None:
            return
        tools = self._tools
        tools.saving.note(written)
        tools.meters.checkpoint(written, stall_s=tools.saving.writer.stall_s)
        if written.error is None:
            if isinstance(tools.source, Monitored):
                tools.source.saved(written.positions)
            self._event("checkpoint", f"checkpoint of step {written.step} in {written.seconds:.1f} s", written.step)
        elif isinstance(written.error, WriteFailed):
            self._event("warning", f"{written.error}; training goes on", written.step)
            if tools.world.rank == 0:
                log.warning("%s; training goes on", written.error)
        elif isinstance(written.error, CheckpointError):
            self._fail(written.error)
        else:
            raise written.error

    def _finish(self, decision: Decision) -> Ending:
        """The last checkpoint and report."""
        tools = self._tools
        if self.step == 0 and decision.ended:
            return Ending(code=ExitCode.INVALID, reason=_NO_ROWS)
        tools.watch.settle()
        self._judge_loss()
        self._report()
        self._note(tools.saving.writer.wait())
        failure = self._agreed_failure()
        if not failure and tools.saving.is_new(self.step):
            self._save(self._settled())
            written = tools.saving.writer.wait()
            self._note(written)
            if written is not None and isinstance(written.error, WriteFailed):
                self._fail(written.error)
            failure = self._agreed_failure()
        if failure:
            return self._failed(failure)
        if decision.stop:
            return Ending(code=ExitCode.TERMINATED, reason="asked to stop")
        done = self._spec.trainer.max_steps is not None and self.step >= self._spec.trainer.max_steps
        return Ending(code=ExitCode.DONE, reason="maxSteps is reached" if done else "the source has ended")

    def _agreed_failure(self) -> int:
        """The exit code of any rank's failure, or 0."""
        failure = self._failure.code if self._failure else 0
        messages = self._exchange(Message(rows=0, ended=True, failure=failure))
        return min(filter(None, messages.every.failure), default=0)

    def _failed(self, code: int) -> Ending:
        """The reason of whichever rank failed with `code`."""
        mine = self._failure.reason if self._failure is not None else None
        reasons: list[str | None] = [mine] * self._tools.world.size
        if self._tools.world.size > 1:
            dist.all_gather_object(reasons, mine, group=self._tools.world.control_group)
        if self._error is not None and code == BROKEN:
            raise self._error
        rank, reason = next((i, text) for i, text in enumerate(reasons) if text is not None)
        where = f"rank {rank}: " if self._tools.world.size > 1 else ""
        return Ending(code=code, reason=f"{where}{reason}")

    def _roll_back(self) -> bool:
        """Goes back to the last checkpoint, once, if the job asks for it; the rows since stay skipped."""
        tools = self._tools
        if self._spec.evaluation.on_divergence != "rollback":
            return False
        tools.saving.writer.wait()
        if not tools.saving.roll_back():
            return False
        reason = self._failure.reason if self._failure is not None else "another rank diverged"
        tools.runtime.reload()
        self._failure, self._pending = None, None
        tools.watch.forget()
        if tools.ledger is not None:
            tools.ledger.roll_back(tools.saving.saved_step or 0)
        self._event("guard", f"back to the checkpoint of step {tools.saving.saved_step}, once: {reason}", self.step)
        return True

    def _fail(self, error: Exception) -> None:
        if self._failure is not None:
            return
        code = exit_code_of(error)
        if code == BROKEN:
            self._error = error
        self._failure = Ending(code=code, reason=str(error))

    def _wait(self) -> None:
        began = time.monotonic()
        with self._tools.runtime.timer.host("wait"):
            time.sleep(IDLE_S)
        paused_s = time.monotonic() - began
        self._starved_s += paused_s
        now_s = time.monotonic()
        if now_s - max(self._clock.stepped_s, self._starved_said_s) >= SAY_STARVED_S:
            self._starved_said_s = now_s
            batch_rows, waited_s = self._spec.trainer.batch_size_per_gpu, now_s - self._clock.stepped_s
            if self._tools.world.rank == 0:
                self._event("warning", starved(self._ready, batch_rows=batch_rows, seconds=waited_s), self.step)
        self._tools.meters.waited(paused_s)

    def _event(self, kind: str, text: str, step: int) -> None:
        self._tools.display.event(Event(time_s=time.time(), kind=kind, text=text, step=step))


def exit_code_of(error: Exception) -> int:
    """The exit code of DESIGN 10 for what can go wrong with data and checkpoints; BROKEN for the unforeseen."""
    match error:
        case DataBudgetExceeded():
            return ExitCode.DATA_BUDGET
        case CheckpointError():
            return error.exit_code
        case SourceError() | InvalidDocument() | BatchError():
            return int(getattr(error, "exit_code", ExitCode.INVALID))
        case _:
            return BROKEN


_NO_ROWS = (
    "the source ended before a single row came; see spec.source: the path or topic, its format, "
    "and whether its rows went to quarantine or dead letters"
)
