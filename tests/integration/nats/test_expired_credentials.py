"""Credentials that expire: nats-py closes the connection then, and its error_cb is not called."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from liftenvelope.errors import ConnectionClosedError, TransportError
from liftenvelope.jetstream import JetStream
from liftenvelope.nats import AckInbox
from liftenvelope.testing import run_nats_server
from tests.integration.conftest import connect
from tests.integration.credentials_files import operator_of

_WHY = r"closed.*\(its last error: nats: user authentication expired\)"


async def test_errors_say_that_the_credentials_have_expired(tmp_path: Path) -> None:
    config, write = operator_of(tmp_path)
    with run_nats_server(config=config) as server:
        write(8)
        nc = await connect(server.url, user_credentials=str(tmp_path / "user.creds"))
        async with JetStream(nc).advisories() as advisories, AckInbox(nc, timeout=240) as inbox:
            pending = inbox.expect()
            async with asyncio.timeout(240):
                with pytest.raises(ConnectionClosedError, match=_WHY):
                    await anext(advisories)
                with pytest.raises(TransportError, match=_WHY):
                    await pending
            with pytest.raises(TransportError, match=_WHY):
                await JetStream(nc).account_info()
