"""Messages of consumers, without a server: acks go to a list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import pytest
from nats.aio.msg import Msg

from liftenvelope.envelope import new_message
from liftenvelope.errors import CallTimeoutError, ChecksumError, UsageError
from liftenvelope.jetstream.message import (
    Message,
    MessageMetadata,
    Recorder,
    counted_size,
    sequences_of,
    stored_at,
)
from liftenvelope.nats.pull_inbox import size_of

if TYPE_CHECKING:
    from nats.aio.client import Client

V1 = "$JS.ACK.ORDERS.worker.2.7.3.1700000000123456789.41"
V2 = "$JS.ACK.hub.ACCOUNT.ORDERS.worker.2.7.3.1700000000123456789.41"


def message_of(data: bytes = b"x", reply: str = V1) -> tuple[Message, Recorder]:
    acks = Recorder()
    return Message("orders.new", reply, data, None, acks), acks


class TestMetadata:
    @pytest.mark.parametrize(
        ("reply", "domain"),
        [(V1, ""), (V2, "hub"), (V2 + ".random", "hub"), (V2.replace("hub", "_"), ""), (V2 + ".a.b", "hub")],
    )
    def test_both_forms(self, reply: str, domain: str) -> None:
        message, _ = message_of(reply=reply)
        expected = MessageMetadata("ORDERS", "worker", 7, 3, 2, 41, 1700000000123456789, domain)
        assert message.metadata == expected
        assert message.metadata is message.metadata
        assert message.metadata.timestamp.isoformat() == "2023-11-14T22:13:20.123456+00:00"
        assert sequences_of(reply) == (7, 3)
        assert stored_at(reply) == 1700000000123456789

    @pytest.mark.parametrize(
        "reply", ["", "$JS", "_INBOX.x", "$JS.ACK.a.b", V1 + ".10th", V1.replace("41", "x")]
    )
    def test_anything_else(self, reply: str) -> None:
        with pytest.raises(UsageError, match="must be the reply subject"):
            MessageMetadata.from_reply(reply)
        with pytest.raises(UsageError, match="must be the reply subject"):
            sequences_of(reply.replace("7", "x"))
        with pytest.raises(UsageError, match="must be the reply subject"):
            stored_at(reply.replace("17", "x"))


class TestAcks:
    async def test_each(self) -> None:
        acts: list[tuple[Callable[[Message], None], bytes]] = [
            (lambda m: m.ack(), b"+ACK"),
            (lambda m: m.nak(), b"-NAK"),
            (lambda m: m.nak(delay=0.1), b'-NAK {"delay": 100000000}'),
            (lambda m: m.nak(delay=1e12), b'-NAK {"delay": 9223372036854775807}'),
            (lambda m: m.term(), b"+TERM"),
            (lambda m: m.term("größer"), "+TERM größer".encode()),
        ]
        for act, payload in acts:
            message, acks = message_of()
            act(message)
            assert acks.sent == [(V1, payload)]
            assert message.is_acked
            for again in (message.ack, message.nak, message.term, message.in_progress):
                with pytest.raises(UsageError, match="acknowledged before"):
                    again()
            with pytest.raises(UsageError, match="acknowledged before"):
                await message.ack_sync()
            assert len(acks.sent) == 1

    def test_in_progress_any_number_of_times(self) -> None:
        message, acks = message_of()
        message.in_progress()
        message.in_progress()
        message.ack()
        assert [payload for _, payload in acks.sent] == [b"+WPI", b"+WPI", b"+ACK"]

    async def test_an_ack_that_was_not_answered_may_be_tried_again(self) -> None:
        class Silent(Recorder):
            async def send_and_wait(self, reply: str, payload: bytes, timeout: float | None) -> None:
                raise TimeoutError

        message = Message("a", V1, b"", None, Silent())
        with pytest.raises(TimeoutError):
            await message.ack_sync()
        message.ack()

    @pytest.mark.parametrize("delay", [0, -1, float("inf")])
    def test_bad_delays(self, delay: float) -> None:
        message, acks = message_of()
        with pytest.raises(UsageError, match="delay"):
            message.nak(delay)
        assert acks.sent == []
        assert not message.is_acked

    def test_no_reply(self) -> None:
        message, _ = message_of(reply="")
        with pytest.raises(UsageError, match="no reply subject"):
            message.ack()

    async def test_auto_ack_progress(self) -> None:
        message, acks = message_of()
        async with asyncio.timeout(60), message.auto_ack_progress(0.01):
            while len(acks.sent) < 3:
                await asyncio.sleep(0.005)
        message.ack()
        count = len(acks.sent)
        await asyncio.sleep(0.03)  # nothing more is sent
        assert [payload for _, payload in acks.sent] == [b"+WPI"] * (count - 1) + [b"+ACK"]

    async def test_auto_ack_progress_goes_on_after_an_ack_that_was_not_confirmed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        message, acks = message_of()

        async def unconfirmed(*_: object) -> None:
            await asyncio.sleep(0.05)
            raise CallTimeoutError("no answer")

        monkeypatch.setattr(acks, "send_and_wait", unconfirmed)
        async with asyncio.timeout(60), message.auto_ack_progress(0.01):
            with pytest.raises(CallTimeoutError):
                await message.ack_sync()
            count = len(acks.sent)
            while len(acks.sent) < count + 3:
                await asyncio.sleep(0.005)

    async def test_auto_ack_progress_passes_errors_and_ends_with_the_ack(self) -> None:
        message, acks = message_of()

        async def work() -> None:
            async with message.auto_ack_progress(10):
                message.ack()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await work()
        assert len(acks.sent) == 1
        with pytest.raises(UsageError):
            async with message.auto_ack_progress(0):
                pass


class TestEnvelope:
    def test_one(self) -> None:
        message, _ = message_of(new_message(b"21.5", key=b"k", headers={"unit": b"C"}))
        envelope = message.envelope()
        assert envelope is not None
        assert (envelope.value, envelope.key, envelope.headers["unit"]) == (b"21.5", b"k", b"C")

    def test_none(self) -> None:
        assert message_of(b"21.5")[0].envelope() is None

    def test_a_damaged_one(self) -> None:
        damaged = bytearray(new_message(b"21.5", crc=True))
        damaged[-1] ^= 1
        with pytest.raises(ChecksumError):
            message_of(bytes(damaged))[0].envelope()


class TestSize:
    """The size is the server's: subject, reply, header block as published, payload."""

    @staticmethod
    def size(headers: dict[str, str] | None) -> int:
        message = Message("ä.b", "12345", b"1234567", headers, Recorder())
        message._size = size_of(
            Msg(cast("Client", None), message.subject, message.reply, message.data, headers)
        )
        return counted_size(message)

    def test_without_headers(self) -> None:
        assert self.size(None) == 4 + 5 + 7

    def test_with_headers(self) -> None:
        assert self.size({"A": "1", "B": "ö"}) == 16 + len("NATS/1.0\r\nA: 1\r\nB: ö\r\n\r\n".encode())

    def test_the_id_of_a_pin_is_not_counted(self) -> None:
        assert self.size({"Nats-Pin-Id": "x" * 22}) == 16
        assert self.size({"Nats-Pin-Id": "x" * 22, "A": "1"}) == self.size({"A": "1"})
