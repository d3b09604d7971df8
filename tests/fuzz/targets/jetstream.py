"""Publishes to JetStream: entered into a table, settled by answers, withdrawn, and timed out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.fuzz.target import Chunks, Exact, Target, option
from tests.twin import test_jet as jet

__all__ = ["TARGETS"]


#: Values of max_payload: a server may send anything.
PAYLOADS: tuple[Any, ...] = (1 << 20, 10, -1, "10", None)


def read(data: bytes) -> Any:
    """An ack, slowly."""
    try:
        found = json.loads(data)
        return jet.Ack(**found) if isinstance(found, dict) else ValueError("no object")
    except (ValueError, TypeError, RecursionError):
        return ValueError("no ack")


def settled(twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """Each chunk is an operation: a letter, then `token|payload`, or a time."""
    table = twin.PublishTable(jet.INBOX, twin.AckReader(jet.Ack, read), jet.refused)
    nc = jet.Connection()
    quick = twin.QuickSender(
        table,
        nc,
        jet.KeptFuture,
        nc,
        jet.Timer(),
        clock=lambda: 2.0,
        heads={"a": jet.HEAD},
        retries={},
        max_outstanding=30,
    )
    futures: list[Any] = []
    log: list[Any] = []
    for chunk in chunks:
        kind, (token, _, payload) = chunk[:1], chunk[1:].partition(b"|")
        if kind == b"e":
            futures.append(jet.Future(cancelled=token[-1:] == b"c"))
            block = b"" if token[:1] != b"h" else b"NATS/1.0\r\n\r\n"
            deadline = option(token, 1, 64) / 8
            log.append((table.enter(futures[-1], deadline, jet.HEAD, block, exact(payload)), table.token))
        elif kind == b"q":
            nc._max_payload = PAYLOADS[option(token, 0, len(PAYLOADS))]
            block = b"NATS/1.0\r\n\r\n" if option(token, 1, 2) else b""
            subject = ("a", "b", None)[option(token, 2, 3)]
            future = quick.send(subject, exact(payload), block, option(token, 3, 64) / 8, 0, 0.25)
            futures += [] if future is None else [future]
            log.append((nc._pending.copy(), nc._pending_data_size, nc.stats.copy()))
        elif kind in (b"s", b"h"):
            subject = jet.INBOX + token.decode("utf-8", "replace")
            headers = b"503" if kind == b"h" else None
            log.append(table.settle([(subject, b"", headers, exact(payload))] * (1 + (payload[-1:] == b" "))))
        elif kind == b"o":
            log.append(table.settle_one(token.decode("utf-8", "replace"), None, exact(payload)))
        elif kind == b"w":
            log.append(table.withdraw(token.decode("utf-8", "replace")))
        elif kind == b"x":
            log.append(expired(table.expire(option(token, 0) / 16)))
        elif kind == b"X":
            log.append(expired(table.expire_all()))
        log.append((len(table), table.next_expiry() if kind == b"n" else None))
    return log, [str(future.ends) for future in futures]


def expired(found: list[Any]) -> list[str]:
    return [token for _, token in found]


def seeds() -> Iterator[Chunks]:
    acks = [
        b'{"stream":"S","seq":1}',
        b'{"stream":"S","seq":2}',
        b'{"domain":"d","stream":"S","seq":3}',
        b'{"stream":"S","seq":4,"duplicate":true}',
        b'{"duplicate":true,"stream":"S","seq":5}',
        b'{"duplicate":true,"stream":"S","seq":6}',
        b'{"error":{"code":400}}',
    ]
    enters = [b"e" + form + bytes((i * 9,)) + b"|body" * i for i, form in enumerate((b"x", b"h", b"x", b"h"))]
    for at in range(len(acks)):
        answers = [b"s%d|%b" % (i + 1, ack) for i, ack in enumerate([*acks[at:], *acks[:at]][:4])]
        yield [*enters, *answers, b"x\x10|", b"n"]
    yield [*enters, b"w2", b"w9", b"h1|", b"o_INBOX.x.3|" + acks[0], b"X", b"n"]
    for options in range(5):
        sent = [b"q" + bytes((options, i, i * options, 40)) + b"|" + b"x" * i * 9 for i in range(3)]
        yield [*sent, b"s1|" + acks[0], b"s2|" + acks[3], b"x\xff|", b"n"]
    yield [b"ex\1c|", b"ex\2|", b"s1|" + acks[0] + b" ", b"x\xff"]


WORDS = (
    b'{"stream":"S","seq":',
    b"}",
    b'"duplicate":true,',
    b"e",
    b"s1|",
    b"h2|",
    b"q\0\0\0\x08|",
    b"w1",
    b"x",
    b"X",
    b"n",
    b"|",
)
TARGETS = (Target("settled", "_fastjet", settled, seeds, WORDS),)
