"""Single envelopes: read from any bytes, and made of any values."""

from __future__ import annotations

import copy
import gzip
import json
import pickle
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from liftenvelope._native.values import ACK_FIELDS, MESSAGE_FIELDS
from liftenvelope.errors import EnvelopeError, LiftEnvelopeError
from tests.fuzz.target import ACKNOWLEDGES, MESSAGES, PUBLISHES, Chunks, Exact, Target, option

__all__ = ["TARGETS", "corpus"]

GO_CORPUS = Path(__file__).parent.parent.parent / "unit" / "data" / "go_corpus.jsonl.gz"
LARGEST = 1_000


def corpus(kind: str) -> list[bytes]:
    """Envelopes of Liftbridge's Go client, sound and broken."""
    records = [json.loads(line) for line in gzip.decompress(GO_CORPUS.read_bytes()).splitlines()]
    found = [bytes.fromhex(record["hex"]) for record in records if record.get("type", record["kind"]) == kind]
    return [data for data in found if len(data) <= LARGEST]


def first(chunks: Chunks) -> bytes:
    return chunks[0] if chunks else b""


def read(name: str, twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """Read one envelope."""
    return getattr(twin, name)(exact(first(chunks)))


def read_bare(name: str, twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """Read one message that is not in an envelope."""
    return getattr(twin, name)([exact(first(chunks))])[0]


def read_both(name: str, twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """Read one message that is not in an envelope, also with the headers that servers add."""
    getattr(twin, name)([exact(first(chunks))], strip_headers=False)
    return read_bare(name, twin, chunks, exact)


def looked_at(twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """Look at the type of one envelope, and use what is read in every other way."""
    data = exact(first(chunks))
    log: list[Any] = [twin.is_envelope(data), attempt(lambda: int(twin.peek_type(data)))]
    for name in ("unmarshal_message", "unmarshal_ack"):
        found = attempt(partial(getattr(twin, name), data))
        log.append(found if isinstance(found, tuple) else uses(found))
    return log


def uses(value: Any) -> list[Any]:
    """Return what the methods of a value return."""
    other = copy.copy(value)
    names = ("timestamp", "reception_timestamp", "commit_timestamp")
    check = getattr(value, "raise_for_error", None)
    return [
        repr(value),
        repr(pickle.loads(pickle.dumps(value))),  # of the extension's class for both twins
        (other == value, copy.deepcopy(value) == value),
        attempt(lambda: hash(other) == hash(value), TypeError),
        [getattr(value, name) for name in names if hasattr(value, name)],
        check and attempt(check),
    ]


def fields(names: tuple[str, ...], value: Any) -> list[Any]:
    """The fields of a value, each with its class: True is not 1."""
    return [(type(field), field) for field in (getattr(value, name) for name in names)]


def response(answer: tuple[Any, ...]) -> list[Any]:
    ident, ack, code, text = answer
    return [ident, None if ack is None else fields(ACK_FIELDS, ack), code, text]


def envelopes(kind: str) -> list[Chunks]:
    return [[data] for data in corpus(kind)]


def bare(kind: str) -> list[Chunks]:
    return [[data[8:]] for data in corpus(kind)]


def responses() -> list[Chunks]:
    """Answers to publishes, around acks."""
    return [
        [b"\x0a" + bytes((len(ack),)) + ack + b"\x12\x06\x08\x05\x12\x02no" + b"\x1a\x02id"]
        for ack in (data[8:][:120] for data in corpus("ack"))
    ]


def encoded(twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """Encode a value made of the chunks: options, four texts, key, value, then header names and values."""
    options, *rest = chunks
    given = [*rest[:6], *[b""] * (6 - len(rest[:6]))]
    texts = [part.decode("utf-8", "surrogateescape") for part in given[:4]]
    headers = {
        name.decode("utf-8", "surrogateescape"): exact(value)
        for name, value in zip(rest[6::2], rest[7::2], strict=False)
    }
    key, value, crc = exact(given[4]), exact(given[5]), bool(option(options, 0, 2))
    policy, number = option(options, 1, 5) - 1, int.from_bytes(options[2:10], "little", signed=True)
    partition = int.from_bytes(options[10:14], "little", signed=True)
    shared: dict[str, Any] = {
        "key": key or None,
        "headers": headers or None,
        "ack_inbox": texts[0] or None,
        "correlation_id": texts[1] or None,
        "ack_policy": policy,
    }
    calls: list[Callable[[], Any]] = [
        lambda: twin.new_message(value, expected_offset=number, crc=crc, **shared),
        lambda: twin.publish_request(texts[2], value, partition=partition, **shared),
        lambda: twin.marshal_message(
            twin.Message(value, offset=number, subject=texts[3], stream=texts[2], **shared), crc=crc
        ),
        lambda: twin.marshal_ack(
            twin.Ack(
                stream=texts[2],
                msg_subject=texts[3],
                offset=number,
                ack_inbox=texts[0],
                correlation_id=texts[1],
                ack_policy=policy,
                commit_timestamp_ns=partition,
            ),
            crc=crc,
        ),
        lambda: (twin.is_envelope(value), int(twin.peek_type(value))),
    ]
    which = option(options, 14, len(calls))
    made = attempt(calls[which])
    again = which in (0, 2) and isinstance(made, bytes)
    return made, again and attempt(lambda: fields(MESSAGE_FIELDS, twin.unmarshal_message(exact(made))))


def attempt(work: Callable[[], Any], *expected: type[Exception]) -> Any:
    """Return the result of a call, or its error."""
    try:
        return work()
    except LiftEnvelopeError as exc:
        return type(exc), str(exc)
    except expected as exc:
        return type(exc)


def seeds_of_values() -> Iterable[Chunks]:
    for call in range(5):
        yield [
            bytes(14) + bytes((call,)),
            b"in.box",
            b"id",
            b"stream",
            b"subject",
            b"key",
            b"value",
            b"a",
            b"1",
            "ü".encode(),
            b"",
        ]
    yield [b"\1\2" + b"\xff" * 12, b"", b"", b"s", b"", b"", b"v" * 300, b"n" * 130, b"x"]
    yield [b"\0\1\x80\0\0\0\0\0\0\0\7\0\0\0", b"\xff", b"id", b"", b"s", b"k", b"\xb9\x0e\x43\xb4\0\x08\0\0"]


def decoder(name: str, format_: int, seeds: Callable[[], list[Chunks]], kind: str) -> Target:
    plain = partial(fields, MESSAGE_FIELDS if kind == "message" else ACK_FIELDS)
    function = f"unmarshal_{kind}"
    return Target(
        name,
        "_fastenv",
        partial(read, function),
        seeds,
        format=format_,
        most=1,
        plain=plain,
        refusals=(EnvelopeError,),
        explained=("env", function),
    )


TARGETS = (
    decoder("message", PUBLISHES, partial(envelopes, "message"), "message"),
    decoder("ack", ACKNOWLEDGES, partial(envelopes, "ack"), "ack"),
    Target(
        "stored",
        "_fastenv",
        partial(read_both, "read_messages"),
        partial(bare, "message"),
        format=MESSAGES,
        most=1,
        plain=partial(fields, MESSAGE_FIELDS),
        refusals=(EnvelopeError,),
        explained=("payloads", "read_stored"),
    ),
    Target(
        "response",
        "_fastenv",
        partial(read_bare, "read_publish_responses"),
        responses,
        format=MESSAGES,
        most=1,
        plain=response,
        refusals=(EnvelopeError,),
        explained=("payloads", "read_response"),
    ),
    *(
        Target(
            f"used-{kind}", "_fastenv", looked_at, partial(envelopes, kind), format=format_, most=1, share=2
        )
        for kind, format_ in (("message", PUBLISHES), ("ack", ACKNOWLEDGES))
    ),
    Target("values", "_fastenv", encoded, seeds_of_values),
)
