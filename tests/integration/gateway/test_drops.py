"""Messages that JetStream drops: the gateway says so, of its own NATS server and of one whose log it has."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client as NatsClient

import liftenvelope
from liftenvelope.errors import UsageError
from liftenvelope.gateway import Gateway
from liftenvelope.gateway._monitoring.drops import Drop, LogFile, read_drop
from liftenvelope.gateway.serving import Serving, running_gateway
from liftenvelope.jetstream import JetStream
from liftenvelope.testing import run_nats_server
from tests.handled import handled
from tests.integration.conftest import connect

SMALL = {"max_buffered_msgs": 10, "max_buffered_size": 10_000}
TEXT = "[7] 2026/11/21 17:19:27.018359 [WRN] Dropping messages due to excessive stream ingest rate on "


def warned(caplog: pytest.LogCaptureFixture, name: str) -> bool:
    return any(name in text and "dropped messages on" in text for text in caplog.messages)


async def flood(nc: NatsClient, subject: str, caplog: pytest.LogCaptureFixture, name: str) -> None:
    """Publish much more than JetStream holds, until there is a warning."""

    async def some() -> None:
        for _ in range(5_000):
            await nc.publish(subject, b"x" * 100)
        await handled(nc)

    async with asyncio.timeout(60):
        while not warned(caplog, name):
            await some()
            await asyncio.sleep(0)


async def make(gateway: Gateway, name: str) -> None:
    async with liftenvelope.connect([gateway.address]) as client:
        await client.create_stream(name, name, partitions=2)


async def test_drops_by_the_embedded_server_are_reported(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liftenvelope.gateway.embedded.BUFFERED", SMALL)
    with caplog.at_level(logging.WARNING, "liftenvelope.gateway"):
        async with running_gateway(Serving(data_dir=str(tmp_path))) as (gateway, own):
            assert own is not None
            await make(gateway, name)
            nc = await connect(own.url, **own.login)
            await flood(nc, f"{name}.1", caplog, name)
            async with JetStream(nc) as js:
                stored = (await (await js.stream(f"lift_{name}_1")).info()).state.messages
            assert stored < nc.stats["out_msgs"]
            await nc.close()
    assert any(f"{name}, partition 1" in text for text in caplog.messages)


async def test_drops_by_a_server_with_a_known_log_are_reported(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "nats.log"
    # A stream of the same name in another account is none of the gateway's.
    accounts = {
        "ours": {"jetstream": "enabled", "users": [{"user": "ours", "password": "p"}]},
        "theirs": {"jetstream": "enabled", "users": [{"user": "theirs", "password": "p"}]},
    }
    config: dict[str, Any] = {
        "jetstream": {"store_dir": str(tmp_path / "js"), **SMALL},
        "accounts": accounts,
        "log_file": str(log),
    }
    login = {"user": "ours", "password": "p"}
    with (
        caplog.at_level(logging.WARNING, "liftenvelope.gateway"),
        run_nats_server(jetstream=True, config=config) as server,
    ):
        nc = await connect(server.url, **login)
        async with Gateway(nc, nats_log=log) as gateway:
            await make(gateway, name)
            with log.open("a") as file:
                file.write(f"{TEXT}'theirs' > 'lift_{name}_1': IPQ len limit reached\n")
            await flood(nc, name, caplog, name)
        await nc.close()
    assert not any(f"{name}, partition 1" in text for text in caplog.messages)


def test_lines() -> None:
    assert read_drop(f"{TEXT}'A B' > 'lift_it''s_0': why not\n") == Drop("A B", "lift_it''s_0", "why not")
    assert read_drop("[7] 2026/11/21 [INF] Server is ready") is None


def test_a_log_that_is_rotated(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old\n")
    file = LogFile(str(path))
    assert file.lines() == []
    with path.open("ab") as log:
        log.write(b"one\ntw")
        log.flush()
        assert file.lines() == ["one"]
        log.write(b"o\n\xff\n")
        log.flush()
        assert file.lines() == ["two", "\ufffd"]
    os.rename(path, tmp_path / "log.1")
    assert file.lines() == []
    path.write_bytes(b"three\n")
    assert file.lines() == ["three"]
    path.write_bytes(b"4\n")
    assert file.lines() == ["4"]
    file.close()
    with pytest.raises(UsageError, match="nats_log must be a file that can be read"):
        LogFile(str(tmp_path / "none"))
