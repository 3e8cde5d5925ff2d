"""Where events come from: Kafka or files."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rap_contract.features import Name
from rap_contract.model import Model

Patterns = Annotated[list[Name], Field(max_length=10_000)]
_SECRET = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"


class EventTime(Model):
    """Where an event says when it happened."""

    column: Name | None = None
    """Column with the time; without one the message's own timestamp, or the file's, counts."""
    unit: Literal["s", "ms", "us", "ns"] = "s"
    """Unit of a numeric column; an Arrow timestamp knows its own."""


class Csv(Model):
    """How delimited text is read."""

    delimiter: str = Field(default=",", min_length=1, max_length=1)
    """Field separator."""
    header: bool = True
    """The first line names the columns."""
    column_names: Patterns | None = None
    """Names of the columns in file order; required without a header, replaces the header's otherwise."""
    hex_columns: Patterns = []
    """Integer columns written in hexadecimal, as Criteo's categories are."""


class DeadLetter(Model):
    """Where records that cannot be read go."""

    topic: str | None = Field(default=None, min_length=1, max_length=249)
    """Kafka topic."""
    path: str | None = Field(default=None, min_length=1, max_length=4096)
    """Directory; also used when the topic cannot be written."""


class ErrorBudget(Model):
    """The share of bad records beyond which the job stops."""

    ratio: float = Field(default=0.01, ge=0, le=1)
    """Largest share of bad rows in a window."""
    window_rows: int = Field(default=100_000, ge=1, le=10**12)
    """Length of the window."""


class KafkaAuth(Model):
    """How to log in to the brokers. Values are read from files of the mounted Secret."""

    secret_name: str = Field(min_length=1, max_length=253, pattern=_SECRET)
    """Secret with `username`, `password`, `token`, `ca.crt`, `tls.crt`, `tls.key` as needed."""
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "TLS"] = "SCRAM-SHA-512"
    """SASL mechanism, or TLS for client certificates alone."""
    tls: bool = True
    """Encrypt the connection."""


class Kafka(Model):
    """A topic."""

    bootstrap_servers: Annotated[list[str], Field(min_length=1, max_length=64)]
    """Brokers to begin with, `host:port`."""
    topic: str = Field(min_length=1, max_length=249, pattern=r"^[A-Za-z0-9._-]+$")
    """Topic of events."""
    start_from: str = Field(default="earliest", pattern=r"^(earliest|latest|\d{4}-\d\d-\d\dT.+)$")
    """Where to begin without a checkpoint: earliest, latest, or a time such as 2026-01-31T00:00:00Z."""
    format: Literal["arrow", "json", "csv", "tsv"] = "arrow"
    """How a message holds its rows."""
    csv: Csv = Csv()
    """Options of the csv and tsv formats."""
    event_time: EventTime = EventTime()
    """Where an event says when it happened."""
    auth: KafkaAuth | None = None
    """How to log in; none for a plain listener."""
    isolation: Literal["readCommitted", "readUncommitted"] = "readCommitted"
    """Which transactional records are visible."""
    on_data_loss: Literal["fail", "skip"] = "fail"
    """Retention has deleted rows the checkpoint still wants: stop, or count them and go on."""
    readers_per_rank: int = Field(default=1, ge=1, le=32)
    """Reader processes of a rank; each reads a share of its partitions, and takes up to one core."""
    partition_discovery_seconds: int = Field(default=60, ge=1, le=86_400)
    """How often new partitions are looked for."""
    dead_letter: DeadLetter | None = None
    """Where unreadable records go; without one they count against the budget and their place is logged."""
    error_budget: ErrorBudget = ErrorBudget()
    """When bad records stop the job."""


class Files(Model):
    """A directory of files, or one file."""

    path: str = Field(min_length=1, max_length=4096)
    """Directory or file."""
    format: Literal["parquet", "arrow", "csv", "tsv"] = "parquet"
    """How the files are written."""
    follow: bool = False
    """Go on as the directory grows, until a file named `_END` appears."""
    csv: Csv = Csv()
    """Options of the csv and tsv formats."""
    event_time: EventTime = EventTime()
    """Where an event says when it happened."""
    dead_letter: DeadLetter | None = None
    """Where unreadable records go; without one they count against the budget and their place is logged."""
    error_budget: ErrorBudget = ErrorBudget()
    """When bad records stop the job."""


class Source(Model):
    """Where events come from: exactly one of kafka and files."""

    kafka: Kafka | None = None
    """Read a Kafka topic."""
    files: Files | None = None
    """Read a directory of files."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.kafka is None) == (self.files is None):
            raise ValueError("exactly one of kafka and files")
        return self

    @property
    def error_budget(self) -> ErrorBudget:
        return self._chosen.error_budget

    @property
    def event_time(self) -> EventTime:
        return self._chosen.event_time

    @property
    def dead_letter(self) -> DeadLetter | None:
        return self._chosen.dead_letter

    @property
    def _chosen(self) -> Kafka | Files:
        chosen = self.kafka or self.files
        assert chosen is not None
        return chosen
