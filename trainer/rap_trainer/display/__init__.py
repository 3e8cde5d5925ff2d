"""What a person sees of a run: terminal, JSON lines, Prometheus metrics, HTML report.

    store = MetricStore(metrics.TRAINER)
    server = MetricsServer(store, port=...)                         # every rank; InvalidDocument if the port is taken
    history = History(directory / FILE_NAME)
    sinks = [Gauges(store, rank=0, version=...), terminal(sys.stdout), history, Report(history, html_path)]
    display = Display(sinks)

The other ranks have a Display of their Gauges alone.
"""

from rap_trainer.display.gauges import Gauges
from rap_trainer.display.history import FILE_NAME, History
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.display.metrics_server import MetricsServer
from rap_trainer.display.progress import PARTS, Event, Outcome, Progress, Run
from rap_trainer.display.report import REPORT_NAME, Report
from rap_trainer.display.sink import Display, Sink
from rap_trainer.display.terminal import FORMS, Form, terminal

__all__ = [
    "FILE_NAME",
    "FORMS",
    "PARTS",
    "REPORT_NAME",
    "Display",
    "Event",
    "Form",
    "Gauges",
    "History",
    "MetricStore",
    "MetricsServer",
    "Outcome",
    "Progress",
    "Report",
    "Run",
    "Sink",
    "terminal",
]
