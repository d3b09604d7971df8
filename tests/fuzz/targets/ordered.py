"""Messages of an ordered consumer, by operations: buffered, lost, handed out, and of another queue.

The callback of a queue that is low calls back into the queues as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.fuzz.target import Chunks, Exact, Target, option

__all__ = ["TARGET"]

#: Words for the reply subjects that a chunk spells out.
WORDS = (b"$JS.ACK.S.C.1.", b"$JS.ACK.D.A.S.C.1.", b"9223372036854775807.", b"9223372036854775808.")


class Reader:
    """Reads two queues in order, and does something to them when one of them runs low."""

    def __init__(self, twin: Any, options: bytes) -> None:
        self.twin, self.mode, self.lows = twin, option(options, 0, 6), 0
        threshold = option(options, 1, 4)
        self.queues = [twin.MessageQueue(threshold, False, self.low, self.wait) for _ in range(2)]
        self.order = twin.OrderedQueue(self.wait)
        #: Deliveries that were made up for each queue.
        self.made = [0, 0]

    def low(self) -> None:
        self.lows += 1
        if self.lows > 40:
            return
        if self.mode == 1:
            self.order.switch(None)
        elif self.mode == 2:
            self.order.switch(self.queues[self.lows & 1])
        elif self.mode == 3:
            raise ZeroDivisionError
        elif self.mode == 4 and self.order:
            self.order.pop()
        elif self.mode == 5:
            self.queues[0].clear()

    async def wait(self) -> str:
        return "waited"

    def message(self, delivery: int) -> Any:
        return self.said(f"$JS.ACK.S.C.1.{3 * delivery}.{delivery}.17.0", b"%d" % delivery)

    def said(self, reply: str, data: bytes = b"said") -> Any:
        return self.twin.Delivered("a", reply, data, None, None)

    def deliver(self, place: int, count: int) -> None:
        first = self.made[place] + 1
        self.made[place] += count
        self.queues[place].extend([self.message(first + number) for number in range(count)])


def handed_out(twin: Any, chunks: Chunks, _exact: Exact) -> Any:
    """Each chunk is an operation, the queue, and a number or the text of a reply subject."""
    reader = Reader(twin, chunks[0] if chunks else b"")
    order, log = reader.order, list[Any]()
    for chunk in chunks[1:]:
        try:
            log.append(operate(reader, option(chunk, 0, 10), option(chunk, 1, 2), chunk[2:]))
        except (IndexError, ZeroDivisionError) as exc:
            log.append(type(exc))
        log.append((bool(order), order.expected, order.sequence, *map(len, reader.queues), reader.lows))
    return log


def operate(reader: Reader, operation: int, place: int, rest: bytes) -> Any:
    queue, order, number = reader.queues[place], reader.order, option(rest, 0)
    if operation < 2:
        reader.deliver(place, number)
    elif operation == 2:  # lost on its way
        reader.made[place] += number % 3
    elif operation == 3:
        queue.append(reader.said(rest.decode("latin-1")))
    elif operation == 4:
        return [order.pop().data for _ in range(1 + number)]
    elif operation == 5:
        return [taken(anext(order)) for _ in range(1 + number % 9)]
    elif operation == 6:
        order.switch(queue)
        reader.made[place] = 0
    elif operation == 7:
        order.switch(None)
    elif operation == 8:
        order.is_held = bool(number & 1)
    else:
        order.expected += len(reader.twin.in_order(queue.pop_many(number), order.expected))
    return None


def taken(awaitable: Any) -> Any:
    """Run the steps without an event loop: nothing here waits."""
    steps = awaitable.__await__()
    try:
        steps.send(None) if hasattr(steps, "send") else next(steps)
    except StopIteration as stop:
        return stop.value if isinstance(stop.value, str) else stop.value.data
    raise AssertionError("it waits")


def seeds() -> Iterator[Chunks]:
    operations = [
        b"\6\0",
        b"\0\0\5",
        b"\5\0\3",
        b"\2\0\1",
        b"\0\0\2",
        b"\4\0\4",
        b"\6\1",
        b"\0\1\xff",
        b"\0\1\xff",
        b"\4\1\xfe",
        b"\10\0\1",
        b"\5\0\0",
        b"\10\0\0",
        b"\11\1\7",
        b"\3\1$JS.ACK.S.C.1.9.9.17.0",
        b"\3\1$JS.ACK.d.a.S.C.1.9223372036854775808.1.17.0",
        b"\4\1\0",
        b"\7\0",
        b"\5\0\0",
    ]
    for mode in range(6):
        for threshold in (0, 3):
            yield [bytes((mode, threshold)), *operations[:11]]
            yield [bytes((mode, threshold)), operations[0], operations[1], *operations[9:]]


TARGET = Target("ordered", "_fastframes", handed_out, seeds, WORDS, share=10)
