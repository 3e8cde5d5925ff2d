"""How to reach the brokers: options of kafka-python clients, with secrets from files of the mounted Secret.

Every connection reads the files again as it logs in, so renewed secrets need no restart. A client's options hold names
of files and never a secret, whoever prints them; nothing here puts one into a message.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kafka.errors import KafkaConnectionError
from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.sasl.plain import SaslMechanismPlain
from kafka.net.sasl.scram import SaslMechanismScram
from kafka.record import util as kafka_record

from rap_trainer.stream.kafka.settings import Login
from rap_trainer.stream.source import SourceError

# At DEBUG kafka-python logs every byte it sends, passwords and tokens among them; at INFO each connection.
logging.getLogger("kafka").setLevel(logging.WARNING)


def require_fast_checksums() -> None:
    """Raises SourceError without the C form of CRC-32C: in Python a reader manages 7 MB/s, with it about 280 MB/s."""
    if getattr(kafka_record, "crc32c_c", None) is None:
        raise SourceError("kafka-python has no fast checksum; hint: install `rap[trainer]`, or the package `crc32c`")


def client_options(servers: Sequence[str], login: Login | None) -> dict[str, Any]:
    """Options that every client takes. Raises SourceError naming the file that is missing."""
    options: dict[str, Any] = {"bootstrap_servers": list(servers), "metrics_enabled": False}
    if login is None:
        return options
    with_sasl = login.mechanism != "TLS"
    options["security_protocol"] = ("SASL_SSL" if login.tls else "SASL_PLAINTEXT") if with_sasl else "SSL"
    if login.tls or not with_sasl:
        options |= _tls_options(login.directory, client_certificate=not with_sasl)
    if login.mechanism == "OAUTHBEARER":
        token = login.directory / "token"
        _required(token)
        options |= {"sasl_mechanism": login.mechanism, "sasl_oauth_token_provider": TokenFile(token)}
    elif with_sasl:
        options["sasl_mechanism"] = login.mechanism
        for name in ("username", "password"):
            path = login.directory / name
            _required(path)
            options[f"sasl_plain_{name}"] = SecretFile(path)
    return options


class SecretFile(str):
    """The path of a secret, in place of it: what logs in reads the file."""

    __slots__ = ()


class _PlainFromFiles(SaslMechanismPlain):
    """kafka-python makes one for every connection."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**_with_secrets(config))


class _ScramFromFiles(SaslMechanismScram):
    """kafka-python makes one for every connection."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**_with_secrets(config))


def _with_secrets(config: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {
            key: _required(Path(value)) if isinstance(value, SecretFile) else value for key, value in config.items()
        }
    except SourceError as error:  # a Secret may be on its way to a new version
        raise KafkaConnectionError(str(error)) from error


register_sasl_mechanism("PLAIN", _PlainFromFiles, overwrite=True)
for _name in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
    register_sasl_mechanism(_name, _ScramFromFiles, overwrite=True)


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
