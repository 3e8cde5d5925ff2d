"""The beginning and the end of an attempt on its displays."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rap_trainer.display import Display, Event, Outcome, Run
from rap_trainer.step.loop import Ending, Loop
from rap_trainer.world import World


class Shown:
    """The beginning and end of an attempt on its displays."""

    def __init__(self, display: Display, *, began_s: float) -> None:
        self.display = display
        self._began_s = began_s
        self._loop: Loop | None = None
        self._from = 0, 0

    def start(self, run: Run, loop: Loop, passed_over: Sequence[str]) -> None:
        self._loop, self._from = loop, (loop.step, loop.rows)
        self.display.start(run)
        for reason in passed_over:
            self._event("warning", f"checkpoint passed over: {reason}", run)
        if run.resumed_step:
            self._event("resume", f"from step {run.resumed_step}", run)

    def told(self, kind: str, world: World) -> Callable[[str], None]:
        """Tells an event of this kind on the first rank's displays."""

        def tell(text: str) -> None:
            if world.rank == 0:
                step = self._loop.step if self._loop is not None else None
                self.display.event(Event(time_s=time.time(), kind=kind, text=text, step=step))

        return tell

    def _event(self, kind: str, text: str, run: Run) -> None:
        self.display.event(Event(time_s=time.time(), kind=kind, text=text, step=run.resumed_step))

    def finish(self, ending: Ending) -> None:
        loop, (step, rows) = self._loop, self._from
        if loop is None:
            return  # nothing has begun; the log has the reason
        self.display.finish(
            Outcome(
                time_s=time.time(),
                exit_code=ending.code,
                reason=ending.reason,
                steps=loop.step - step,
                rows=loop.rows - rows,
                seconds=time.time() - self._began_s,
                last=loop.last,
                checkpoint_step=loop.saved_step,
            )
        )
