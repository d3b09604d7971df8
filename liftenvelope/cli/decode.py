"""``liftenvelope decode``: shows what is in a Liftbridge envelope or ack."""

from __future__ import annotations

import base64
import binascii
import re
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from liftenvelope import _wire as w
from liftenvelope.cli._connecting.servers import json_option
from liftenvelope.cli._options.lists import input_option
from liftenvelope.cli._options.places import check_file, fail_cleanly
from liftenvelope.cli._output.terminal import (
    as_json_bytes,
    echo_json,
    plain,
    print_facts,
    shown_bytes,
    shown_time,
)
from liftenvelope.envelope import peek_type, unmarshal_ack, unmarshal_message
from liftenvelope.errors import UsageError
from liftenvelope.types import MessageType

if TYPE_CHECKING:
    from liftenvelope.envelope import Ack, Message

__all__ = ["decode"]

#: Largest input to read, in bytes.
_LARGEST: Final = 64 * 1024 * 1024
_BLANKS: Final = re.compile(rb"[\s:]+")
_HEX: Final = re.compile(rb"(?:0x)?((?:[0-9a-f]{2})*)", re.IGNORECASE)


@click.command()
@click.argument("data", required=False)
@input_option("the envelope")
@click.option(
    "--format",
    "form",
    type=click.Choice(["auto", "hex", "base64", "raw"]),
    default="auto",
    show_default=True,
    help="Form of the input.",
)
@json_option
def decode(data: str | None, file: str | None, form: str, as_json: bool) -> None:
    """Show the fields of an envelope or an ack.

    The input is DATA in hex or base64, a file, or standard input if both are left out. If it is malformed,
    the error says what is wrong and at which byte, and the exit code is 1.
    """
    fail_cleanly(lambda: _decode(data, file, form, as_json))


def _decode(data: str | None, file: str | None, form: str, as_json: bool) -> None:
    if data is not None and file is not None:
        raise UsageError("DATA and --file exclude each other; leave one of them out")
    if data is not None and form == "raw":
        raise UsageError("--format must be hex or base64 for DATA, got raw: use --file for raw bytes")
    envelope = _unpacked(_read(file) if data is None else data.encode("utf-8", "surrogateescape"), form)
    kind = peek_type(envelope)
    if kind is MessageType.ACK:
        found = _ack_fields(unmarshal_ack(envelope))
    elif kind is MessageType.PUBLISH:
        found = _message_fields(unmarshal_message(envelope))
    else:
        found = {}  # of servers among themselves
    header = {"bytes": len(envelope), "checksum": _checksum(envelope)}
    if as_json:
        echo_json({"type": kind.name.lower(), **header, **_json(found)})
    else:
        print_facts(f"Envelope of type {kind.name}", {**header, **_facts(found)})


def _read(file: str | None) -> bytes:
    if (file is None or file == "-") and sys.stdin is None:
        raise UsageError("DATA or --file must be given, because standard input is closed")
    check_file("--file", file or "-", or_input=True)
    with click.open_file(file or "-", "rb") as source:
        found: bytes = source.read(_LARGEST + 1)
    if len(found) > _LARGEST:
        raise UsageError(f"the input must be at most {_LARGEST:,} bytes")
    return found


def _unpacked(given: bytes, form: str) -> bytes:
    """Return the bytes of an envelope that is given raw, in hex or in base64.

    Raises:
        UsageError: The input is not in the form that was asked for.
    """
    if form == "raw" or (form == "auto" and given.startswith(w.MAGIC)):
        return given
    packed = _BLANKS.sub(b"", given)
    as_hex = _HEX.fullmatch(packed)
    if as_hex is not None and form != "base64":
        return bytes.fromhex(as_hex[1].decode())
    if form == "hex":
        raise UsageError("the input must be hex: pairs of the digits 0 to f")
    try:
        # Both alphabets, and without padding too.
        padded = packed.rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
        return base64.b64decode(padded + b"=" * (-len(padded) % 4), validate=True)
    except binascii.Error as exc:
        if form == "auto":
            return given  # the error about its first bytes follows
        raise UsageError(f"the input must be base64: {exc}") from exc


def _checksum(envelope: bytes) -> str:
    """Return the state of the checksum of a valid envelope."""
    flags = envelope[6]
    return "CRC-32C matches" if flags & w.FLAG_CRC else "none"


def _message_fields(message: Message) -> dict[str, Any]:
    return {
        "subject": message.subject,
        "key": message.key,
        "headers": dict(message.headers),
        "value": message.value,
        "stream": message.stream,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp_ns": message.timestamp_ns,
        "reply_subject": message.reply_subject,
        "ack_inbox": message.ack_inbox,
        "correlation_id": message.correlation_id,
        "ack_policy": message.ack_policy,
    }


def _ack_fields(ack: Ack) -> dict[str, Any]:
    return {
        "stream": ack.stream,
        "partition_subject": ack.partition_subject,
        "msg_subject": ack.msg_subject,
        "offset": ack.offset,
        "error": ack.error,
        "ack_inbox": ack.ack_inbox,
        "correlation_id": ack.correlation_id,
        "ack_policy": ack.ack_policy,
        "reception_timestamp_ns": ack.reception_timestamp_ns,
        "commit_timestamp_ns": ack.commit_timestamp_ns,
    }


def _json(found: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, bytes):
            fields |= as_json_bytes(name, value)
        else:
            fields[name] = plain(value)
    return fields


def _facts(found: dict[str, Any]) -> dict[str, object]:
    facts: dict[str, object] = {}
    for name, value in found.items():
        if name == "headers":
            facts |= {f"header {one}": shown_bytes(text) for one, text in value.items()}
        elif name.endswith("timestamp_ns"):
            facts[name.removesuffix("_ns").replace("_", " ")] = shown_time(value)
        elif isinstance(value, bytes):
            facts[name] = shown_bytes(value)
        else:
            facts[name.replace("_", " ")] = plain(value) if hasattr(value, "name") else value
    return {name: value for name, value in facts.items() if value != ""}
