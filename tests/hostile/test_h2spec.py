"""The server's HTTP/2 against h2spec: every case of RFC 9113 and RFC 7541 that it has."""

from __future__ import annotations

import asyncio
from pathlib import Path
from xml.etree import ElementTree

import pytest

from liftenvelope.rpc import _server_side as server_side
from liftenvelope.rpc.server import Server, ServerCall
from tests.hostile.conformance import build_h2spec
from tests.hostile.frames import GREETING, HEADERS, Answers, block, frame

#: Cases of h2spec 2.2.1. Fewer in a report mean that it has not come to its end.
CASES = 145
#: Seconds for an answer, of which a sound server needs none.
PATIENCE = 30


async def answer(call: ServerCall) -> None:
    while await call.receive() is not None:
        pass
    await call.send([b"answer"])


async def run_h2spec(port: str, report: Path) -> list[str]:
    """The cases that failed or were left out, of all."""
    arguments = ["-h", "127.0.0.1", "-p", port, "-o", str(PATIENCE), "-j", str(report)]
    program = await asyncio.to_thread(build_h2spec)
    process = await asyncio.create_subprocess_exec(program, *arguments, stdout=asyncio.subprocess.PIPE)
    await process.communicate()
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    assert len(cases) == CASES
    return [f"{case.get('package')}: {case.get('classname')}: {case[0].text}" for case in cases if len(case)]


async def test_every_case_of_h2spec_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # h2spec asks with GET, which is none of gRPC's: answered with 405 at once, most cases would end too soon.
    monkeypatch.setattr(server_side, "_http_fault", lambda _: None)
    async with Server({"/": answer}) as server:
        address = await server.start()
        assert await run_h2spec(address.rpartition(":")[2], tmp_path / "report.xml") == []


async def test_requests_that_are_none_of_grpc_are_answered_in_http() -> None:
    async with Server({"/": answer}) as server:
        host, port = (await server.start()).rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        get = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"a")]
        writer.write(GREETING + frame(HEADERS, 5, 1, block(get)))
        answers = Answers()
        while not answers.http:
            answers.feed(await reader.read(4096))
        assert answers.http == {405: 1}
        writer.close()
