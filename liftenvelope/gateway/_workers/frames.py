"""Messages between a supervisor and its workers: JSON objects, each after its length in four bytes.

The supervisor writes orders to a worker's standard input and reads answers from its standard output. An
answer has the ``id`` of its order. The end of the input tells a worker that its supervisor is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
from typing import Any, Final

from liftenvelope.gateway._families import Metric, MetricSample

__all__ = ["Frame", "as_frame", "metrics_from", "metrics_to", "read_frame", "receive_frame"]

_LENGTH: Final = struct.Struct(">I")
#: Bytes of a message from a worker. The metrics of the most streams take some MiB.
_MOST_BYTES: Final = 256 * 1024 * 1024

Frame = dict[str, Any]


def as_frame(message: Frame) -> bytes:
    """Return the bytes of a message."""
    body = json.dumps(message, default=os.fspath).encode()
    return _LENGTH.pack(len(body)) + body


def read_frame(descriptor: int) -> Frame | None:
    """Read the next message from a pipe, blocking; None at its end."""
    head = _read(descriptor, _LENGTH.size)
    body = _read(descriptor, *_LENGTH.unpack(head)) if head else b""
    found: Frame | None = json.loads(body) if body else None
    return found


def _read(descriptor: int, size: int) -> bytes:
    """Read so many bytes; none if the pipe ends before."""
    data = b""
    while len(data) < size:
        piece = os.read(descriptor, size - len(data))
        if not piece:
            return b""
        data += piece
    return data


async def receive_frame(reader: asyncio.StreamReader) -> Frame | None:
    """Read the next message; None at the end.

    Raises:
        ValueError: The other side has written something else, as a library that prints at its import does.
    """
    try:
        [size] = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if size > _MOST_BYTES:
            raise ValueError(f"a message must have at most {_MOST_BYTES} bytes, got {size}")
        found = json.loads(await reader.readexactly(size))
    except asyncio.IncompleteReadError:
        return None
    except RecursionError as exc:
        raise ValueError("a message must not be nested deeply") from exc
    if not isinstance(found, dict):
        raise ValueError(f"a message must be an object, got {type(found).__name__}")
    return found


def metrics_to(metrics: list[Metric]) -> list[Any]:
    """Return metrics as JSON has them."""
    return [[one.name, one.kind, one.help, one.labels, one.samples] for one in metrics]


def metrics_from(rows: list[Any]) -> list[Metric]:
    """Return the metrics of :func:`metrics_to`."""
    return [
        Metric(
            name,
            kind,
            text,
            tuple(labels),
            [
                MetricSample(tuple(of), value, tuple((bound, count) for bound, count in buckets))
                for of, value, buckets in samples
            ],
        )
        for name, kind, text, labels, samples in rows
    ]
