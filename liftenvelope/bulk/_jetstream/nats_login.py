"""Build the CONNECT line of a NATS client and sign the server's nonce. Reads credential files.

Rules: https://docs.nats.io/reference/reference-protocols/nats-protocol, and ADR-14 for the signature.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from liftenvelope._secrets import without_secrets
from liftenvelope._version import __version__
from liftenvelope.errors import MissingExtraError, UsageError
from liftenvelope.nats.logins import read_credentials

if TYPE_CHECKING:
    from liftenvelope.bulk.access import Access

__all__ = ["connect_line"]


def connect_line(access: Access, info: Mapping[str, Any], *, tls: bool) -> bytes:
    """Return CONNECT followed by PING. The PONG confirms that the server accepted the login.

    Args:
        access: Login options. This function reads the files that they name.
        info: INFO of the server.
        tls: True if the connection uses TLS.

    Raises:
        UsageError: A file can't be read, or its content is invalid.
        MissingExtraError: The login needs the package ``nkeys``, which is not installed.
    """
    options: dict[str, Any] = {
        "verbose": False,
        "pedantic": False,
        "tls_required": tls,
        "name": "liftenvelope.bulk",
        "lang": "python-liftenvelope",
        "version": __version__,
        "protocol": 1,
        "headers": True,
        "no_responders": True,
        "echo": True,
        **_login(access, str(info.get("nonce") or "")),
    }
    return b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n"


def _login(access: Access, nonce: str) -> dict[str, str]:
    if access.user is not None:
        return {"user": access.user, "pass": access.password or ""}
    if access.token is not None:
        return {"auth_token": access.token}
    if access.user_credentials is not None:
        path = str(access.user_credentials)
        jwt, seed = read_credentials(_file("user_credentials", path), path)
        _, signature = _sign(seed, nonce, "user_credentials", path)
        return {"jwt": jwt, "sig": signature}
    if access.nkeys_seed is not None:
        path = str(access.nkeys_seed)
        key, signature = _sign(_file("nkeys_seed", path).strip(), nonce, "nkeys_seed", path)
        return {"nkey": key, "sig": signature}
    return {}


def _file(name: str, path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError) as exc:
        # A user may have passed the seed itself instead of a file name, and the error contains that "path".
        raise UsageError(
            without_secrets(f"{name} must be a file that can be read, got {path!r}: {exc}")
        ) from None


def _sign(seed: str, nonce: str, name: str, path: str) -> tuple[str, str]:
    """Return the public key of a seed, and the signature of the server's nonce."""
    try:
        import nkeys
    except ModuleNotFoundError as exc:
        raise MissingExtraError(f"{name} needs nkeys: run pip install nkeys", name="nkeys") from exc
    try:
        pair = nkeys.from_seed(bytearray(seed, "ascii"))
        signed = base64.urlsafe_b64encode(pair.sign(nonce.encode())).decode().rstrip("=")
        return pair.public_key.decode(), signed
    except (nkeys.NkeysError, ValueError) as exc:
        raise UsageError(
            f"{name} must have a valid seed, got {without_secrets(path)!r}: {type(exc).__name__}"
        ) from None
