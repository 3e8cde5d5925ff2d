"""How to reach the brokers: options of kafka-python clients, with secrets from files of the mounted Secret.

Files are read when a client is made, so a new client logs in with renewed secrets; an OAuth token is read at every
log-in. Nothing here puts a secret into a message.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.record import util as kafka_record
from rap_contract.pod import SECRET_MOUNT
from rap_contract.source import Kafka, KafkaAuth

from rap_trainer.stream.source import SourceError

ENV_SECRETS = "RAP_SECRETS"
"""Directory of mounted Secrets, one directory each, instead of the pod's."""


def require_fast_checksums() -> None:
    """Raises SourceError without the C form of CRC-32C: in Python a reader manages 7 MB/s, with it about 280 MB/s."""
    if getattr(kafka_record, "crc32c_c", None) is None:
        raise SourceError("kafka-python has no fast checksum; hint: install `rap[trainer]`, or the package `crc32c`")


def client_options(kafka: Kafka, *, directory: Path | None = None) -> dict[str, Any]:
    """Options that every client takes, with secrets of `directory` or the mount.

    Raises SourceError naming the file that is missing.
    """
    options: dict[str, Any] = {"bootstrap_servers": list(kafka.bootstrap_servers), "metrics_enabled": False}
    if kafka.auth is None:
        return options
    auth, directory = kafka.auth, directory or secret_directory(kafka.auth)
    with_sasl = auth.mechanism != "TLS"
    options["security_protocol"] = ("SASL_SSL" if auth.tls else "SASL_PLAINTEXT") if with_sasl else "SSL"
    if auth.tls or not with_sasl:
        options |= _tls_options(directory, client_certificate=not with_sasl)
    if auth.mechanism == "OAUTHBEARER":
        _required(directory / "token")
        options |= {"sasl_mechanism": auth.mechanism, "sasl_oauth_token_provider": TokenFile(directory / "token")}
    elif with_sasl:
        options["sasl_mechanism"] = auth.mechanism
        options["sasl_plain_username"] = _required(directory / "username")
        options["sasl_plain_password"] = _required(directory / "password")
    return options


def secret_directory(auth: KafkaAuth) -> Path:
    """Where the Secret's values are files: a directory of its name, or the mount itself."""
    root = Path(os.environ.get(ENV_SECRETS, SECRET_MOUNT))
    named = root / auth.secret_name
    return named if named.is_dir() else root


class TokenFile(AbstractTokenProvider):
    """An OAuth token that something else renews."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def token(self) -> str:
        """The token as it is now."""
        return _required(self._path)


def _tls_options(directory: Path, *, client_certificate: bool) -> dict[str, str]:
    options = {}
    for option, name in (("ssl_cafile", "ca.crt"), ("ssl_certfile", "tls.crt"), ("ssl_keyfile", "tls.key")):
        if (directory / name).is_file():
            options[option] = str(directory / name)
        elif client_certificate and name != "ca.crt":
            _required(directory / name)
    return options


def _required(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        hint = "hint: spec.source.kafka.auth.secretName must name a Secret with this key"
        raise SourceError(f"{path}: {error.strerror}; {hint}") from error
