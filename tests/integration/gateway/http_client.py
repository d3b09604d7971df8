"""A client of the gateway's HTTP server that sends any bytes."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

PREFIX = "liftenvelope_gateway_"


class Answer(NamedTuple):
    """Answer of the server: status, headers with names in lower case, and body."""

    status: int
    headers: dict[str, str]
    body: str


async def exchange(address: str, request: bytes) -> bytes:
    """Send bytes and return everything that comes back until the server closes the connection."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        async with asyncio.timeout(60):
            writer.write(request)
            return await reader.read()
    finally:
        writer.close()


async def get(address: str, path: str, method: str = "GET") -> Answer:
    """Ask for a path."""
    raw = await exchange(address, f"{method} {path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
    head, _, body = raw.decode().partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Answer(int(first.split()[1]), headers, body)


Samples = dict[tuple[str, ...], float]


def samples_of(text: str) -> Samples:
    """Values by name, without the prefix, and labels."""
    families = text_string_to_metric_families(text)
    return {
        (sample.name.removeprefix(PREFIX), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


async def scrape(address: str) -> Samples:
    """Ask for the metrics."""
    answer = await get(address, "/metrics")
    assert answer.status == 200
    return samples_of(answer.body)
