"""A certificate authority for one test session: servers, clients and signing keys, written as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_FOR = datetime.timedelta(days=7)


@dataclass(frozen=True, kw_only=True)
class KeyPair:
    """A certificate and its private key (PKCS 8, which Go, Java and OpenSSL all read)."""

    certificate: Path
    key: Path


class CertificateAuthority:
    """Signs certificates with a key that exists for this session only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("rap-tests", ())
        own = self._builder(self._name, self._key.public_key(), is_ca=True)
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(_pem(own.sign(self._key, hashes.SHA256())))
        self.key = folder / "ca.key"
        self.key.write_bytes(_private_pem(self._key))

    def issue(
        self,
        file_stem: str,
        *,
        user: str,
        groups: Sequence[str] = (),
        hosts: Sequence[str] = ("localhost", "127.0.0.1"),
    ) -> KeyPair:
        """Write `file_stem`.crt and .key for `user`; good as a client certificate and to serve on `hosts`."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = self._builder(_name(user, groups), key.public_key(), is_ca=False)
        certificate = builder.add_extension(names, critical=False).sign(self._key, hashes.SHA256())
        pair = KeyPair(certificate=self._folder / f"{file_stem}.crt", key=self._folder / f"{file_stem}.key")
        pair.certificate.write_bytes(_pem(certificate))
        pair.key.write_bytes(_private_pem(key))
        return pair

    def _builder(
        self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey, *, is_ca: bool
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + VALID_FOR)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(_key_usage(is_ca=is_ca), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        return builder if is_ca else builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)


def signing_key(folder: Path, file_stem: str) -> KeyPair:
    """Write a bare key pair (public key as `certificate`), as service account tokens are signed with."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    pair = KeyPair(certificate=folder / f"{file_stem}.pub", key=folder / f"{file_stem}.key")
    pair.certificate.write_bytes(public)
    pair.key.write_bytes(_private_pem(key))
    return pair


def _name(user: str, groups: Sequence[str]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
