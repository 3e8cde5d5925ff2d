"""Chooses how a run is shown on standard output: panel, plain lines or JSON lines."""

from __future__ import annotations

import io
import os
from shutil import get_terminal_size
from typing import Literal, TextIO

from rap_trainer.display.lines import JsonLines, Plain
from rap_trainer.display.panel import WIDTH, Panel
from rap_trainer.display.sink import Sink

Form = Literal["auto", "panel", "plain", "json"]
FORMS: tuple[Form, ...] = ("auto", "panel", "plain", "json")


def terminal(stream: TextIO, form: Form = "auto") -> Sink:
    """The sink for a stream: `auto` is a panel on a terminal that can show one, plain lines elsewhere.

    A character the stream's encoding does not know becomes a question mark instead of an error.
    """
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    if form == "auto":
        form = "panel" if _shows_panels(stream) else "plain"
    if form == "json":
        return JsonLines(stream)
    if form == "plain":
        return Plain(stream)
    return Panel(stream, force_terminal=True)


def _shows_panels(stream: TextIO) -> bool:
    """A terminal that moves its cursor and is wide enough."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb" and get_terminal_size().columns >= WIDTH
