"""The reader of stored messages answers the server, and requests everything again after a gap."""

from __future__ import annotations

from typing import Any

import pytest

from liftenvelope.envelope import new_message
from liftenvelope.gateway._acks.flow import ACKNOWLEDGE_EVERY, AckFlow

NOW_NS = 1_800_000_000_000_000_000
PAYLOAD = new_message(b"v", ack_inbox="in.box", correlation_id="1")


def flow() -> AckFlow:
    made = AckFlow("s", "s", max_ack=1 << 20, heartbeat=10.0)
    made.begin(100.0)
    return made


def message(sequence: int, delivery: int, payload: bytes = PAYLOAD) -> Any:
    return ("s", b"$JS.ACK.S.C.1.%d.%d.17.0" % (sequence, delivery), None, payload)


def status(text: str, reply: bytes = b"", **fields: str) -> Any:
    lines = "".join(f"Nats-{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return ("_INBOX.x", reply, f"NATS/1.0 {text}\r\n{lines}\r\n".encode(), b"")


def test_the_acknowledgement_follows_the_acks() -> None:
    written = flow().feed([message(1, 1), message(2, 2)], 100.0, NOW_NS)
    first, second, last = (written.frames.find(part) for part in (b"PUB in.box", b"PUB in.box", b"PUB $JS"))
    assert 0 == first == second < last
    assert written.frames.endswith(b"PUB $JS.ACK.S.C.1.2.2.17.0 4\r\n+ACK\r\n")
    assert (written.messages, written.acks) == (3, 2)


def test_what_gets_no_ack_is_acknowledged_all_the_same() -> None:
    written = flow().feed([message(1, 1, b"plain")], 100.0, NOW_NS)
    assert written == (b"PUB $JS.ACK.S.C.1.1.1.17.0 4\r\n+ACK\r\n", 1, 4, 0)


def test_many_are_acknowledged_at_once() -> None:
    reading = flow()
    assert b"+ACK" in reading.feed([message(1, 1)], 100.0, NOW_NS).frames
    assert not reading.owes
    soon = 100.0 + ACKNOWLEDGE_EVERY / 2
    for number in (2, 3):
        written = reading.feed([message(number, number)], soon, NOW_NS)
        assert (written.messages, written.acks, b"+ACK" in written.frames) == (1, 1, False)
    assert reading.owes
    assert reading.settle(soon) == (b"PUB $JS.ACK.S.C.1.3.3.17.0 4\r\n+ACK\r\n", 1, 4, 0)
    assert not reading.owes
    assert reading.settle(soon) == (b"", 0, 0, 0)
    reading.feed([message(4, 4)], soon, NOW_NS)
    written = reading.feed([message(5, 5)], soon + ACKNOWLEDGE_EVERY, NOW_NS)
    assert written.frames.endswith(b"PUB $JS.ACK.S.C.1.5.5.17.0 4\r\n+ACK\r\n")
    assert not reading.owes


def test_very_many_are_acknowledged_before_the_time() -> None:
    reading = flow()
    reading.feed([message(1, 1)], 100.0, NOW_NS)
    assert b"+ACK" not in reading.feed([message(n, n) for n in range(2, 4_097)], 100.0, NOW_NS).frames
    assert b"+ACK" in reading.feed([message(4_097, 4_097)], 100.0, NOW_NS).frames


@pytest.mark.parametrize("end", ["loss", "give up", "begin"])
def test_what_was_not_acknowledged_is_delivered_again_after_a_loss(end: str) -> None:
    reading = flow()
    reading.feed([message(1, 1)], 100.0, NOW_NS)
    reading.feed([message(2, 2)], 100.0, NOW_NS)
    assert reading.owes
    if end == "loss":
        reading.feed([message(4, 4)], 100.0, NOW_NS)
    elif end == "give up":
        reading.give_up()
    else:
        reading.begin(200.0)
    assert not reading.owes
    assert reading.settle(300.0).frames == b""


def test_what_comes_again_is_acknowledged_again_up_to_the_newest() -> None:
    reading = flow()
    reading.feed([message(3, 1)], 100.0, NOW_NS)
    again = (b"PUB $JS.ACK.S.C.1.3.1.17.0 4\r\n+ACK\r\n", 1, 4, 0)
    assert reading.feed([message(2, 2), message(3, 3)], 100.0, NOW_NS) == again
    assert reading.position == 3
    assert reading.feed([status("100 Idle Heartbeat", Last_Consumer="3")], 100.0, NOW_NS).frames == b""


def test_flow_control_is_answered_after_the_acks() -> None:
    control = status("100 FlowControl Request", b"$JS.FC.S.C.y")
    written = flow().feed([control, message(1, 1)], 100.0, NOW_NS)
    assert written.frames.endswith(b"PUB $JS.FC.S.C.y 0\r\n\r\n")
    assert written.messages == 3


def test_a_stalled_consumer_is_woken() -> None:
    beat = status("100 Idle Heartbeat", Last_Consumer="0", Consumer_Stalled="$JS.FC.S.C.z")
    assert flow().feed([beat], 100.0, NOW_NS).frames == b"PUB $JS.FC.S.C.z 0\r\n\r\n"


@pytest.mark.parametrize(("last", "broken"), [(2, False), (1, False), (3, True)])
def test_a_heartbeat_tells_of_a_loss(last: int, broken: bool) -> None:
    reading = flow()
    reading.feed([message(1, 1), message(2, 2)], 100.0, NOW_NS)
    reading.feed([status("100 Idle Heartbeat", Last_Consumer=str(last))], 100.0, NOW_NS)
    assert reading.broken is broken


def test_the_loss_of_the_first_ones_is_noticed() -> None:
    reading = flow()
    reading.feed([status("100 Idle Heartbeat", Last_Consumer="7")], 100.0, NOW_NS)
    assert reading.broken
    reading.begin(100.0)
    assert reading.feed([message(2, 2)], 100.0, NOW_NS).frames == b""
    assert reading.broken


@pytest.mark.parametrize("text", ["409 Consumer Deleted", "409 Server Shutdown", "503"])
def test_other_statuses_end_a_reading(text: str) -> None:
    reading = flow()
    assert reading.feed([status(text)], 100.0, NOW_NS).frames == b""
    assert reading.broken


def test_nothing_is_done_after_a_loss() -> None:
    reading = flow()
    written = reading.feed([message(1, 1), message(3, 3)], 100.0, NOW_NS)
    assert written.frames.endswith(b"PUB $JS.ACK.S.C.1.1.1.17.0 4\r\n+ACK\r\n")
    assert reading.broken
    assert reading.feed([message(4, 4)], 100.0, NOW_NS).frames == b""
    reading.begin(200.0)
    assert reading.feed([message(2, 1), message(3, 2)], 200.0, NOW_NS).acks == 2


def test_a_reading_that_was_given_up_takes_nothing() -> None:
    reading = flow()
    reading.give_up()
    assert reading.feed([message(1, 1)], 100.0, NOW_NS).frames == b""


def test_silence() -> None:
    reading = flow()
    assert reading.patience(125.0) == 0
    assert reading.patience(125.1) < 0
    reading.feed([status("100 Idle Heartbeat")], 120.0, NOW_NS)
    assert reading.patience(125.0) == 20


def test_nothing_is_taken_before_the_first_reading() -> None:
    reading = AckFlow("s", "s", max_ack=1 << 20, heartbeat=10.0)
    assert reading.broken
    assert reading.feed([message(1, 1)], 0.0, NOW_NS).frames == b""
