"""Logins by keys: nkeys, tokens signed by them, and credentials files."""

from __future__ import annotations

import base64
import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nkeys


def new_nkey(kind: bytes) -> tuple[str, str]:
    """A seed and its public key."""
    prefix = {b"U": nkeys.PREFIX_BYTE_USER, b"A": nkeys.PREFIX_BYTE_ACCOUNT, b"O": nkeys.PREFIX_BYTE_OPERATOR}
    seed = nkeys.encode_seed(os.urandom(32), prefix[kind])
    return seed.decode(), nkeys.from_seed(bytearray(seed)).public_key.decode()


def new_jwt(issuer_seed: str, subject: str, claims: dict[str, Any], lifetime: int | None = None) -> str:
    """A token that says something of a key (https://docs.nats.io, ADR-14), perhaps for so many seconds."""
    issuer = nkeys.from_seed(bytearray(issuer_seed.encode()))

    def part(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).decode().rstrip("=")

    now = int(time.time())
    body = {"jti": secrets.token_hex(8), "iat": now, "iss": issuer.public_key.decode()}
    if lifetime is not None:
        body["exp"] = now + lifetime
    payload = json.dumps({**body, "sub": subject, "name": "test", "nats": claims}).encode()
    head = part(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    signed = f"{head}.{part(payload)}"
    return f"{signed}.{part(issuer.sign(signed.encode()))}"


def write_credentials(folder: Path) -> dict[str, Any]:
    """Write the credentials file ``user.creds``, and return the configuration of a server that accepts it."""
    config, write = operator_of(folder)
    write(None)
    return config


def operator_of(folder: Path) -> tuple[dict[str, Any], Callable[[int | None], None]]:
    """Return the configuration of a server, and a function that writes the file ``user.creds`` for it.

    The function takes the seconds after which the credentials expire; None for never.
    """
    (operator_seed, operator), (account_seed, account), (user_seed, user) = (
        new_nkey(kind) for kind in (b"O", b"A", b"U")
    )
    unlimited = ("mem_storage", "disk_storage", "streams", "consumer", "conn", "subs", "data", "payload")
    limits = dict.fromkeys((*unlimited, "leaf", "imports", "exports"), -1)
    claims: dict[str, Any] = {"version": 2}
    (folder / "operator.jwt").write_text(new_jwt(operator_seed, operator, {**claims, "type": "operator"}))
    config = {
        "operator": str(folder / "operator.jwt"),
        "resolver": "MEMORY",
        "resolver_preload": {
            account: new_jwt(operator_seed, account, {**claims, "type": "account", "limits": limits})
        },
    }

    def write(lifetime: int | None) -> None:
        granted = {**claims, "type": "user", "subs": -1, "data": -1, "payload": -1}
        (folder / "user.creds").write_text(
            f"-----BEGIN NATS USER JWT-----\n{new_jwt(account_seed, user, granted, lifetime)}\n"
            "------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user_seed}\n------END USER NKEY SEED------\n"
        )

    return config, write
