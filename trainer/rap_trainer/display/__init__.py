"""What a person sees of a run: terminal, JSON lines, Prometheus metrics, HTML report."""

from rap_trainer.display.progress import PARTS, Event, Outcome, Progress, Run
from rap_trainer.display.sink import Display, Sink

__all__ = ["PARTS", "Display", "Event", "Outcome", "Progress", "Run", "Sink"]
