"""Shell of one publish stream: the PublishAsync call of an ``InFlight``, reopened when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from liftenvelope._deadlines import Deadline
from liftenvelope.client._brokers.cluster import Cluster
from liftenvelope.client._sending.in_flight import Entry, InFlight, Outcome
from liftenvelope.client._sending.leader_check import until_served
from liftenvelope.client.publish_codec import read_publish_responses
from liftenvelope.errors import EnvelopeError, TransportError
from liftenvelope.rpc.status import CallNotProcessedError, RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.rpc.aio import Call

__all__ = ["Lane", "LaneOwner"]

#: Bytes handed to the transport at once. Messages that were handed over count as sent.
_CHUNK_BYTES: Final = 128 * 1024
#: Seconds to wait for leaders after a loss. Waiting messages are then sent without a confirmed leader.
_PATIENCE: Final = 5.0
#: Seconds after a loss in which new streams wait for leaders too.
_WARY: Final = 10.0
_METHOD: Final = "/proto.API/PublishAsync"


class LaneOwner(Protocol):
    """Owner of a client's lanes, as each lane sees it.

    Attributes:
        cluster: Finds brokers and holds the connections.
        wary_until: Time of the loop's clock until which brokers may have restarted only a moment ago.
    """

    cluster: Cluster
    wary_until: float

    @property
    def is_full(self) -> bool:
        """True if producers wait for room."""
        ...

    def wake(self) -> None:
        """Wake producers that wait."""
        ...

    def settle(self, outcomes: Iterable[tuple[Entry, Outcome]]) -> None:
        """Pass outcomes of messages to their sinks."""
        ...

    def retire(self, lane: Lane) -> None:
        """Forget a lane that has ended."""
        ...


class Lane:
    """Publish stream to one broker, reopened to another broker if the first one can't be reached.

    The task of a lane runs until the stream was idle for ``keep_alive_time``, or was lost with no message on
    it.
    """

    # _serve alternates between _connect and _converse. _converse has one writer task, which sends what waits,
    # and receives answers in a callback. At the end of the call, flight.ended() settles each message or makes
    # the message wait for the next call.

    def __init__(self, streams: LaneOwner, address: str) -> None:
        self.flight = InFlight()
        self._streams = streams
        self._cluster = streams.cluster
        self._address = address
        self._call: Call | None = None
        self._garbled: RpcError | None = None
        self._wake: asyncio.Future[None] | None = None
        # _used: an answer came since the last idle check. _closing: the client has half-closed the call.
        self._used = True
        self._closing = False
        # Losses and failed connects in a row. Starts at 1 if another lane was lost a short time ago.
        self._lost = int(asyncio.get_running_loop().time() < streams.wary_until)
        self._idle_timer: asyncio.TimerHandle | None = None
        self._task = asyncio.create_task(self._serve())

    def wake(self) -> None:
        """Send the waiting messages as soon as possible."""
        if self._wake is None or self._wake.done():
            return  # the writer is running, or there is no call
        call = self._call
        if call is not None and self._closing:
            call.cancel()  # no message is in flight, and Liftbridge may take 5 s to end a half-closed call
        elif call is not None and call.is_idle:
            # Saves the first messages the turn of the event loop that the writer needs to start.
            call.send_soon(self._take())
        if self.flight.has_waiting:
            self._wake.set_result(None)

    def _take(self) -> list[bytes]:
        """Take the requests to send next, and wake producers that wait for room."""
        was_full = self._streams.is_full
        requests = self.flight.take(_CHUNK_BYTES)
        if was_full:
            self._streams.wake()
        return requests

    async def close(self) -> None:
        """End the lane. Messages without an outcome are settled as lost."""
        if self._call is not None and not self._closing:
            self._call.half_close()
        self._task.cancel()
        try:
            await asyncio.gather(self._task, return_exceptions=True)
        finally:
            self._streams.settle(self.flight.abandon("the client was closed"))

    async def _serve(self) -> None:
        """Keep the stream open until it is idle, or was lost with no message on it."""
        failed: list[str] = []
        self._look_later()
        try:
            while True:
                call = await self._connect(failed)
                if call is not None:
                    await self._converse(call)
                if not self.flight.pending:
                    break
        except Exception as exc:  # of broker_selection or on_event: raised by the publishes
            if not self.flight.pending:
                raise
            self._streams.settle(self.flight.fail(exc))
        finally:
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            self._streams.retire(self)

    async def _connect(self, failed: list[str]) -> Call | None:
        """Open the call to the lane's broker, or to any other one if that failed; None if no call was opened.

        After a loss, a pause and a wait for leaders come first.
        """
        deadline = Deadline(self._cluster.options.connect_timeout)
        if self._lost:
            await asyncio.sleep(deadline.pause_before(self._lost))
            await until_served(self._cluster, lambda: self.flight.partitions, Deadline(_PATIENCE))
        address = await self._cluster.any_broker(failed, deadline) if failed else self._address
        try:
            channel = await self._cluster.connections.channel(address)
            call = channel.bidi(_METHOD)
        except (CallNotProcessedError, RpcError):
            # Nothing was sent: messages keep waiting until their deadline.
            self._note_loss()
            failed.append(address)
            return None
        failed.clear()
        return call

    async def _converse(self, call: Call) -> None:
        """Send and receive until the call ends."""
        self._call, self._closing, self._garbled = call, False, None
        call.listen(self._answered)
        writer = asyncio.create_task(self._write(call))
        error: RpcError | TransportError | None = None
        try:
            await call.receive()  # answers go to the listener: this returns or raises at the end of the call
        except (RpcError, TransportError) as exc:
            error = self._cause(exc)
        finally:
            self._call = None
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
        if not self._closing:
            self._note_loss()
        self._streams.settle(self.flight.ended(error))

    def _cause(self, error: RpcError | TransportError) -> RpcError | TransportError:
        """Return the error that ended the stream: an unreadable answer if there was one, else the call's."""
        return self._garbled or error

    def _answered(self, payloads: list[bytes]) -> None:
        """Process answers, called as they come from the socket."""
        if self._garbled is not None:
            return
        self._used, self._lost = True, 0
        try:
            responses = read_publish_responses(payloads)
        except EnvelopeError as exc:
            self._garbled = RpcError(StatusCode.INTERNAL, f"the server's answer can't be read: {exc}")
            if self._call is not None:  # later, because the connection is delivering received data now
                asyncio.get_running_loop().call_soon(self._call.cancel)
            return
        self._streams.settle(self.flight.feed(responses))

    def _note_loss(self) -> None:
        self._lost += 1
        self._streams.wary_until = asyncio.get_running_loop().time() + _WARY

    async def _write(self, call: Call) -> None:
        """Send waiting messages in large chunks, as fast as the transport accepts them."""
        flight = self.flight
        try:
            while True:
                while flight.has_waiting and not self._closing:
                    await call.send(self._take())
                self._wake = asyncio.get_running_loop().create_future()
                await self._wake
        except (RpcError, TransportError):
            return  # _converse gets the same error and settles the messages
        finally:
            self._wake = None

    def _look_later(self) -> None:
        seconds = self._cluster.options.keep_alive_time / 2
        self._idle_timer = asyncio.get_running_loop().call_later(seconds, self._close_idle)

    def _close_idle(self) -> None:
        """Half-close the call if it was idle and no message is pending. The server then ends the call."""
        if self._call is not None and not self._used and not self.flight.pending and not self._closing:
            self._closing = True
            self._call.half_close()
        self._used = False
        self._look_later()
