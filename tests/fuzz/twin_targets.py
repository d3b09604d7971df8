"""More targets of the campaign: rows and acks of bulk reads and writes, and what passes through a gateway.

Each makes what is mostly sound of a random number generator, spoils some of it, and gives it to both twins.
"""

from __future__ import annotations

import random
from typing import Any

from liftenvelope import (
    _acks_py,
    _batch_py,
    _bulk_py,
    _fastack,
    _fastbatch,
    _fastbulk,
    _fastgate,
    _fastjet,
    _gate_py,
    _jet_py,
)
from liftenvelope.envelope import Message, marshal_message
from liftenvelope.errors import LiftEnvelopeError
from tests.twin import test_bulk_requests as requests
from tests.twin import test_bulk_rows as rows
from tests.twin import test_gate_twins as gate
from tests.twin import test_jet as jet

__all__ = ["TARGETS"]

NOW = 1_800_000_000_123_456_789
SUBJECTS = (b"a", b"a.b", b"orders.1", b"\xff\xfe", "\u00e9".encode())
WORDS = ("", "a", "in.box", "a.*", "\u00fc", "x" * 40)
BLOCKS = (b"", b"", b"", b"NATS/1.0\r\nA: 1\r\nB: \r\nA: 2\r\n\r\n", b"NATS/1.0\r\nbroken\r\n", b"\xff\r\n")


def spoiled(choice: random.Random, data: bytes) -> bytes:
    """The bytes, with some of them changed, dropped, doubled or put in, one time in two."""
    changed = bytearray(data)
    for _ in range(choice.choice([0, 0, 0, 1, 1, 3])):
        at = choice.randrange(len(changed) + 1)
        new = choice.choice(
            [b"", b"\r\n", b".", b"9", b"\xff", choice.randbytes(2), bytes(changed[:at][-9:])]
        )
        changed[at : at + choice.randrange(3)] = new
    return bytes(changed)


def envelope(choice: random.Random) -> bytes:
    """An envelope, for the most part."""
    message = Message(
        choice.randbytes(choice.choice([0, 1, 20])),
        key=choice.choice([b"", b"k", b"\xff" * 9]),
        headers=dict.fromkeys(choice.sample(WORDS[1:], choice.randrange(3)), b"1"),
        ack_inbox=choice.choice(WORDS),
        correlation_id=choice.choice(WORDS),
        ack_policy=choice.choice([0, 0, 1, 2, 7]),
    )
    return spoiled(choice, marshal_message(message, crc=choice.random() < 0.3))


def cuts(choice: random.Random) -> list[int]:
    return [choice.randrange(600) for _ in range(choice.randrange(6))]


def bulk_nats_rows(choice: random.Random) -> None:
    """Have both twins make rows of what a NATS server sends."""
    parts, sequence = [], 0
    for delivery in range(1, choice.randrange(2, 12)):
        sequence += choice.choice([1, 1, 1, 2, 5])
        reply = rows.ack(sequence, delivery, domain=choice.random() < 0.2, pending=choice.randrange(3))
        payload = choice.choice([envelope(choice), choice.randbytes(choice.randrange(30))])
        sid = choice.choice([rows.SID] * 9 + [3])
        parts.append(rows.msg(choice.choice(SUBJECTS), sid, reply, choice.choice(BLOCKS), payload))
        if choice.random() < 0.2:
            parts.append(choice.choice([b"PING\r\n", b"-ERR 'no'\r\n", b'INFO {"a":1}\r\n']))
    arguments = (
        spoiled(choice, b"".join(parts)),
        cuts(choice),
        choice.randrange(3),
        (choice.randrange(1, 9), choice.choice([1, 50, 10_000])),
        choice.choice([-1, -1, 0, 3, 8, 1000]),
    )
    assert rows.run_nats(_fastbulk, *arguments) == rows.run_nats(_bulk_py, *arguments)


def bulk_stored_rows(choice: random.Random) -> None:
    """Have both twins make rows of what a Liftbridge server sends."""
    parts, offset = [choice.choice([b"", rows.grpc(b"")])], choice.randrange(4)
    for _ in range(choice.randrange(10)):
        message = rows.stored(
            offset,
            choice.randbytes(choice.choice([0, 3, 30, 1_100])),
            key=choice.choice([b"", b"k"]),
            subject=choice.choice(["a", "b"]),
            headers=dict.fromkeys(choice.sample(WORDS[1:], choice.randrange(3)), b"1"),
            correlationId=choice.choice(WORDS),
        )
        parts.append(rows.grpc(spoiled(choice, message)))
        offset += choice.choice([1, 1, 1, 4])
    arguments = (
        spoiled(choice, b"".join(parts)),
        cuts(choice),
        (choice.randrange(1, 9), choice.choice([1, 50, 10_000])),
        choice.randrange(5),
        choice.choice([-1, -1, 0, 4, 9]),
    )
    assert rows.run_stored(_fastbulk, *arguments) == rows.run_stored(_bulk_py, *arguments)


def bulk_publish_acks(choice: random.Random) -> None:
    """Have both twins count what a Liftbridge server answers to publishes."""
    steps: list[tuple[str, Any]] = []
    for _ in range(choice.randrange(1, 8)):
        if choice.random() < 0.4:
            steps.append(("sent", [choice.choice([0, 0, 1, 2, 3]) for _ in range(choice.randrange(4))]))
            continue
        answers = [
            choice.choice(
                [
                    requests.answer(choice.randrange(9), offset=choice.randrange(30)),
                    requests.answer(choice.randrange(9), ackError=choice.randrange(4)),
                    requests.answer(choice.choice(WORDS), stream=choice.choice(["orders", "other"])),
                    requests.refusal(choice.randrange(9)),
                ]
            )
            for _ in range(choice.randrange(5))
        ]
        steps.append(("feed", spoiled(choice, b"".join(answers))))
    where = cuts(choice)
    assert requests.run_acks(_fastbulk, steps, where) == requests.run_acks(_bulk_py, steps, where)


def bulk_requests(choice: random.Random) -> None:
    """Have both twins make requests of rows."""
    table = [
        (
            choice.choice([None, b""] + [choice.randbytes(choice.choice([1, 30, 200]))] * 20),
            choice.choice([None, b"", b"k" * 130]),
            choice.choice([None, {}, dict.fromkeys(choice.sample(WORDS[1:], choice.randrange(3)), b"1")]),
            choice.choice([0, 1, 127, 128, 2**31 - 1]),
        )
        for _ in range(choice.randrange(6))
    ]
    number, limit, longest = choice.choice([0, 9, 10**18]), choice.randrange(600), choice.choice([40, 10_000])
    found = []
    for twin in (_batch_py, _fastbatch):
        try:
            made = requests.requests(twin, table)
        except LiftEnvelopeError as exc:
            found.append([type(exc), str(exc)])
        else:
            found.append([made.nbytes, requests.all_frames(made, number, limit, longest)])
    assert found[0] == found[1]


def deliveries(choice: random.Random) -> list[Any]:
    """What JetStream delivers to a gateway."""
    found, sequence = [], 0
    for delivery in range(1, choice.randrange(2, 8)):
        sequence += choice.choice([0, 1, 1, 1, 1, 2])
        reply = spoiled(choice, rows.ack(sequence, delivery, domain=choice.random() < 0.2))
        subject = choice.choice(["s", "s.1", "\u00fc"])
        payload = choice.choice([envelope(choice), choice.randbytes(choice.randrange(30))])
        found.append((subject, reply, None, payload))
    return found


def gateway_acks(choice: random.Random) -> None:
    """Have both twins ack what was delivered."""
    names = (choice.choice(WORDS), choice.choice(WORDS), choice.choice([1, 60, 1 << 20]))
    acks = [twin.Acknowledger(*names) for twin in (_acks_py, _fastack)]
    for _ in range(3):
        batch = deliveries(choice)
        ours, theirs = (one.take(batch, NOW) for one in acks)
        assert ours == theirs
        for name in ("reply", "stream_sequence", "delivery", "gap", "repeated", "refused"):
            assert getattr(acks[0], name) == getattr(acks[1], name)
        if acks[0].gap:
            for one in acks:
                one.begin()
    inbox = spoiled(choice, choice.choice(WORDS).encode())
    assert _acks_py.is_ack_inbox(inbox) == _fastack.is_ack_inbox(inbox)
    prefixes = (inbox[: choice.randrange(4)], b"_lift.")
    assert _acks_py.is_ack_inbox(inbox, prefixes) == _fastack.is_ack_inbox(inbox, prefixes)


def gateway_messages(choice: random.Random) -> None:
    """Have both twins frame what was delivered for subscribers."""
    batch, least, most = deliveries(choice), choice.randrange(4), choice.choice([-1, 0, 3, 9])
    found = []
    for twin in (_gate_py, _fastgate):
        framer = twin.MessageFramer("s", 1)
        frames = framer.frame(batch, least, most)
        found.append((frames, framer.sequence, framer.pending))
    assert found[0] == found[1]


def gateway_publishes(choice: random.Random) -> None:
    """Have both twins take publish requests, and the answers to them."""
    requests = [
        spoiled(
            choice,
            gate.request(
                key=choice.choice([b"", b"k"]),
                value=choice.randbytes(choice.randrange(90)),
                stream=choice.choice(["s", "s", "s", "t"]),
                partition=choice.choice([0, 0, 1, 2, -1]),
                headers=dict.fromkeys(choice.sample(WORDS[1:], choice.randrange(3)), b"1"),
                correlationId=choice.choice(WORDS),
                ackPolicy=choice.choice([0, 0, 1, 2, 5]),
            ),
        )
        for _ in range(choice.randrange(1, 6))
    ]
    answers = [
        (
            gate.INBOX + spoiled(choice, b"%d" % choice.randrange(6)).decode("latin-1"),
            b"",
            choice.choice([None, None, None, b"NATS/1.0 503\r\n\r\n"]),
            spoiled(choice, b'{"stream":"JS%d","seq":%d}' % (choice.randrange(2), choice.randrange(9))),
        )
        for _ in range(choice.randrange(8))
    ]
    most, expired = choice.choice([60, 1 << 20]), choice.randrange(4)
    found = []
    for twin in (_gate_py, _fastgate):
        pipe = gate.pipe_of(twin, most)
        log: list[Any] = [pipe.take(requests, 0), pipe.acked(answers[:4], NOW), pipe.expire(expired)]
        found.append([*log, pipe.acked(answers[4:], NOW), pipe.pending, pipe.next_number])
    assert found[0] == found[1]


def jetstream_acks(choice: random.Random) -> None:
    """Have both twins settle publishes by what the server answers."""
    tables = [jet.table_of(twin) for twin in (_jet_py, _fastjet)]
    futures: list[list[jet.Future]] = [[], []]
    for _ in range(choice.randrange(1, 6)):
        count, deadline = choice.randrange(4), choice.randrange(40) / 8
        messages = [
            (
                jet.INBOX + spoiled(choice, b"%d" % choice.randrange(1, 9)).decode("latin-1"),
                b"",
                choice.choice([None, None, None, b"503"]),
                spoiled(
                    choice, b'{"stream":"S","seq":%d}' % choice.choice([1, 10**17, choice.randrange(99)])
                ),
            )
            for _ in range(choice.randrange(5))
        ]
        log = []
        for table, made in zip(tables, futures, strict=True):
            made += [jet.Future() for _ in range(count)]
            entered = [table.enter(one, deadline, jet.HEAD, b"", b"x") for one in made[len(made) - count :]]
            log.append((entered, table.settle(messages), len(table), [str(one.ends) for one in made]))
        assert log[0] == log[1]


TARGETS = (
    bulk_nats_rows,
    bulk_stored_rows,
    bulk_publish_acks,
    bulk_requests,
    gateway_acks,
    gateway_messages,
    gateway_publishes,
    jetstream_acks,
)
