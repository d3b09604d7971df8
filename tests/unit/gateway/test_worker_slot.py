"""A worker's process is started again, killed if it is stuck, and given up if it never serves clients."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from liftenvelope.errors import TransportError, UsageError
from liftenvelope.gateway._workers.frames import as_frame
from liftenvelope.gateway._workers.process import WorkerProcess
from liftenvelope.gateway._workers.slot import Program, WorkerSlot
from liftenvelope.gateway.serving import Serving
from liftenvelope.gateway.supervisor import check_ports

#: A worker that does as its first message says. It does not answer while there is a file "hang". To import
#: the gateway's own functions for frames would take half a second each time.
FAKE = """
import json, os, struct, sys, time
from pathlib import Path
def as_frame(message):
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body
def read_frame():
    head = sys.stdin.buffer.read(4)
    return json.loads(sys.stdin.buffer.read(*struct.unpack(">I", head))) if head else None
first = read_frame()
settings = first["settings"]
with Path(settings["runs"]).with_name("ports").open("a") as file:
    file.write(f"{first['serving']['gateway'].get('port', 0)} ")
runs = Path(settings["runs"])
with runs.open("a") as file:
    file.write(settings["plan"][min(len(runs.read_text()), len(settings["plan"]) - 1)])
plan = runs.read_text()[-1]
junk = {"j": b"\\0\\0\\0\\2no", "5": b"\\0\\0\\0\\0015", "l": b"large"}
os.write(1, junk.get(plan, b""))
if plan == "e":
    os.write(1, as_frame({"error": "no luck"}))
    sys.exit(1)
while (order := read_frame()) is not None:
    while runs.with_name("hang").exists():
        time.sleep(0.01)
    if plan == "s" or order["do"] == "stop":
        os.write(1, as_frame({"id": order["id"], "address": "127.0.0.1:1", "reasons": {}}))
    if plan == "d" or order["do"] == "stop":
        sys.exit(3)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftenvelope.gateway._workers.slot._FIRST", 0.01)
    monkeypatch.setattr("liftenvelope.gateway._workers.slot._LONGEST", 0.01)
    monkeypatch.setattr("liftenvelope.gateway._workers.slot._LOOK", 0.01)


def slot_of(folder: Path, plan: str, others_serve: Callable[[], bool] = lambda: False) -> WorkerSlot:
    """A worker whose runs do as the letters of the plan say: serve, die, or end with an error."""
    (folder / "runs").touch()
    settings = {"plan": plan, "runs": str(folder / "runs")}
    return WorkerSlot(
        7,
        Serving(nats_url="nats://127.0.0.1:1"),
        Program([sys.executable, "-c", FAKE], settings),
        lambda: None,
        others_serve,
    )


def runs(folder: Path) -> str:
    return (folder / "runs").read_text()


async def test_worker_that_ends_before_it_serves_for_the_first_time_is_not_started_again(
    tmp_path: Path,
) -> None:
    with pytest.raises(TransportError, match=r"^no luck$"):
        await slot_of(tmp_path, "e").keep()
    assert runs(tmp_path) == "e"
    (tmp_path / "runs").unlink()
    with pytest.raises(TransportError, match=r"^worker 7 has ended with status 3$"):
        await slot_of(tmp_path, "d").keep()


@pytest.mark.parametrize(
    ("plan", "reason"),
    [("j", "Expecting value"), ("5", "must be an object, got int"), ("l", "must have at most .* bytes")],
)
async def test_worker_that_writes_no_answer_is_killed(tmp_path: Path, plan: str, reason: str) -> None:
    async with asyncio.timeout(240):
        with pytest.raises(TransportError, match=f"^it has written what is no answer: .*{reason}"):
            await slot_of(tmp_path, plan).keep()
    assert runs(tmp_path) == plan


async def test_worker_that_ends_five_times_before_it_serves_again_is_given_up(tmp_path: Path) -> None:
    slot = slot_of(tmp_path, "seeeee")
    keeping = asyncio.create_task(slot.keep())
    async with asyncio.timeout(240):
        await slot.started.wait()
        assert slot.process is not None
        await slot.process.kill()
        with pytest.raises(
            TransportError, match=r"worker 7 has ended 5 times in a row .*, the last time with: no luck"
        ):
            await keeping
    assert runs(tmp_path) == "seeeee"
    assert (slot.restarts, slot.address) == (6, "")


async def test_worker_is_not_given_up_while_another_one_serves_clients(tmp_path: Path) -> None:
    slot = slot_of(tmp_path, "s" + 8 * "e" + "s", others_serve=lambda: True)
    keeping = asyncio.create_task(slot.keep())
    async with asyncio.timeout(240):
        await slot.started.wait()
        assert slot.process is not None
        await slot.process.kill()
        while slot.restarts < 9 or not slot.address:
            assert not keeping.done()
            await asyncio.sleep(0.01)
    assert runs(tmp_path) == "s" + 8 * "e" + "s"
    await slot.stop(keeping, 60.0)


async def test_stuck_worker_is_killed_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slot, hang = slot_of(tmp_path, "s"), tmp_path / "hang"
    keeping = asyncio.create_task(slot.keep())
    async with asyncio.timeout(240):
        await slot.started.wait()
        monkeypatch.setattr("liftenvelope.gateway._workers.slot._SILENT", 0.1)
        hang.touch()
        while "did not answer" not in caplog.text:
            await asyncio.sleep(0.01)
        monkeypatch.setattr("liftenvelope.gateway._workers.slot._SILENT", 60.0)
        hang.unlink()
        while not slot.address:
            await asyncio.sleep(0.01)
        await slot.stop(keeping, 60.0)
    assert slot.restarts >= 1
    assert not keeping.exception()


async def test_cancellation_that_comes_with_the_answer_is_kept(tmp_path: Path) -> None:
    (tmp_path / "hang").touch()
    program = slot_of(tmp_path, "s")._program
    first = {"settings": program.settings, "serving": {"gateway": {}}}
    process = await WorkerProcess.start(program.command, first)
    asking = asyncio.create_task(process.ask("state", 240.0))
    await asyncio.sleep(0)
    [answer] = process._asked.values()
    answer.set_result({})
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await process.kill()


def test_frames_hold_any_text() -> None:
    assert as_frame({"a": "ü\ud800"})[4:] == b'{"a": "\\u00fc\\ud800"}'


@pytest.mark.parametrize(
    ("gateway", "http", "text"),
    [
        ({"port": 65_533}, None, None),
        ({"port": 65_534}, None, "port must be at most 65533 for 3 workers, which take a port each"),
        ({"port": 0, "advertise": "a:65535"}, None, "advertise must be at most 65533 for 3 workers"),
        ({"port": 9292}, "127.0.0.1:9295", None),
        ({"port": 9292}, "127.0.0.1:9294", "http must not be one of the ports of the workers, 9292 to 9294"),
        ({"port": 0}, "127.0.0.1:9294", None),
    ],
)
def test_ports_of_workers(gateway: dict[str, object], http: str | None, text: str | None) -> None:
    serving = Serving(nats_url="nats://127.0.0.1:1", gateway=gateway, http=http)
    if text is None:
        check_ports(serving, 3)
    else:
        with pytest.raises(UsageError, match=text):
            check_ports(serving, 3)


async def test_free_port_that_another_program_took_is_given_up(tmp_path: Path) -> None:
    """A worker comes back at its port. If it can't serve there, the next run takes any free port."""
    slot = slot_of(tmp_path, "sdes")
    keeping = asyncio.create_task(slot.keep())
    ports = tmp_path / "ports"
    async with asyncio.timeout(240):
        await slot.started.wait()
        assert slot.process is not None
        await slot.process.kill()
        while len(ports.read_text().split()) < 4:
            await asyncio.sleep(0.01)
    await slot.stop(keeping, 60.0)
    # Runs 2 and 3 end before they serve.
    assert ports.read_text().split() == ["0", "1", "0", "0"]
