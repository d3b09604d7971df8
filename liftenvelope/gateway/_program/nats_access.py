"""Files for TLS and logins of a standalone gateway, checked before anything is started."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

from liftenvelope._checks import about
from liftenvelope._secrets import without_secrets
from liftenvelope.errors import MissingExtraError, UsageError
from liftenvelope.nats.logins import read_credentials
from liftenvelope.rpc.tls_files import client_context, no_password

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["check_login", "check_readable", "client_tls", "server_tls"]


def check_readable(name: str, path: object) -> None:
    """Check that a file can be read now. nats-py reads credentials only when a server asks for them.

    Raises:
        UsageError: The file can't be read.
    """
    if not isinstance(path, str | os.PathLike):
        return
    try:
        Path(path).read_bytes()
    except OSError as exc:
        text = f"{name} must be a file that can be read, got {os.fspath(path)!r}: {exc.strerror}"
        # The path may be a seed given instead of a file. The OSError contains it too, so it is not chained.
        raise about(UsageError(without_secrets(text)), name) from None


def check_login(connect: Mapping[str, Any]) -> None:
    """Check the files of a login with a credentials file or an nkey.

    Args:
        connect: Arguments of ``nats.connect``.

    Raises:
        MissingExtraError: The login needs the package ``nkeys``, which is not installed.
        UsageError: A file can't be read, or does not hold the seed of an nkey or the blocks of credentials.
    """
    for name in ("user_credentials", "nkeys_seed"):
        if (path := connect.get(name)) is None:
            continue
        check_readable(name, path)
        try:
            import nkeys
        except ModuleNotFoundError as exc:
            raise MissingExtraError(f"{name} needs nkeys: run pip install nkeys", name="nkeys") from exc
        if name == "user_credentials":
            try:
                read_credentials(Path(path).read_text("utf-8", "replace"), without_secrets(path))
            except UsageError as exc:
                raise about(exc, name) from None
        else:
            try:
                nkeys.from_seed(bytearray(Path(path).read_bytes().strip())).wipe()
            except (nkeys.NkeysError, ValueError) as exc:
                # The text of the error may hold a part of the file.
                text = f"{name} must be a file with the seed of an nkey, got {without_secrets(path)!r}"
                raise about(UsageError(f"{text}: {type(exc).__name__}"), name) from None


def server_tls(cert: str, key: str | None, client_ca: str | None) -> ssl.SSLContext:
    """Return a TLS context for clients.

    Args:
        cert: PEM file of the certificate.
        key: PEM file of its key.
        client_ca: PEM file of the authority of client certificates, which are then required; None for none.

    Raises:
        UsageError: A file can't be read, or the files do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password=no_password)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as exc:
        raise _not_pem(("tls_cert", "tls_key", "tls_client_ca"), (cert, key, client_ca), exc) from exc
    return context


def client_tls(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """Return a TLS context for connections to NATS.

    Args:
        ca: PEM file of the authority of the server's certificate; None for those of the system.
        cert: PEM file of the client certificate; None for none.
        key: PEM file of its key.

    Raises:
        UsageError: A file can't be read, or the files do not belong together.
    """
    try:
        return client_context(ca, cert, key)
    except OSError as exc:
        raise _not_pem(("nats_tls_ca", "nats_tls_cert", "nats_tls_key"), (ca, cert, key), exc) from exc


def _not_pem(names: tuple[str, str, str], files: tuple[str | None, ...], exc: OSError) -> UsageError:
    shown = ", ".join(repr(name) for name in files if name)
    text = f"{names[0]}, {names[1]} and {names[2]} must be PEM files that belong together, got {shown}"
    return about(UsageError(f"{text}: {exc}"), *names)
