"""What the job says about its topic, as plain values: a reader process starts without the contract's models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rap_contract.names import expand
from rap_contract.pod import SECRET_MOUNT

if TYPE_CHECKING:
    from rap_contract.source import Kafka, KafkaAuth

ENV_SECRETS = "RAP_SECRETS"
"""Directory of mounted Secrets, one directory each, instead of the pod's."""

MessageFormat = Literal["arrow", "json", "csv", "tsv"]


@dataclass(frozen=True, kw_only=True)
class Login:
    """How to log in. The secrets themselves are read from files when they are used."""

    mechanism: str
    tls: bool
    directory: Path
    """Holds `username`, `password`, `token`, `ca.crt`, `tls.crt`, `tls.key` as needed."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """How delimited text is read."""

    delimiter: str
    header: bool
    """Each message begins with the column names."""
    names: Sequence[str] | None
    """Names of the columns in order, in place of the header's."""


@dataclass(frozen=True, kw_only=True)
class TopicSettings:
    """`spec.source.kafka`, as far as a reader needs it."""

    servers: tuple[str, ...]
    topic: str
    format: MessageFormat
    text: Text
    start_from: str
    read_committed: bool
    skip_lost: bool
    """Go on where retention has deleted what was to be read."""
    discovery_s: int
    login: Login | None


def settings_of(kafka: Kafka) -> TopicSettings:
    """The job's words as plain values."""
    csv = kafka.csv
    names = None if csv.column_names is None else [n for pattern in csv.column_names for n in expand(pattern)]
    delimiter = "\t" if kafka.format == "tsv" and csv.delimiter == "," else csv.delimiter
    return TopicSettings(
        servers=tuple(kafka.bootstrap_servers),
        topic=kafka.topic,
        format=kafka.format,
        text=Text(delimiter=delimiter, header=csv.header, names=names),
        start_from=kafka.start_from,
        read_committed=kafka.isolation == "readCommitted",
        skip_lost=kafka.on_data_loss == "skip",
        discovery_s=kafka.partition_discovery_seconds,
        login=None if kafka.auth is None else login_of(kafka.auth),
    )


def login_of(auth: KafkaAuth) -> Login:
    """The Secret's values are files of a directory of its name below the mount, or of the mount itself."""
    root = Path(os.environ.get(ENV_SECRETS, SECRET_MOUNT))
    named = root / auth.secret_name
    return Login(mechanism=auth.mechanism, tls=auth.tls, directory=named if named.is_dir() else root)
