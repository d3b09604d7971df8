"""``liftenvelope account info``, on nats-server with accounts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from liftenvelope.testing import NatsServer, run_nats_server
from tests.integration.cli.commands import error_of, json_of, text_of

CONFIG = """
accounts {
  LIMITED {
    jetstream: {max_mem: 10M, max_file: 50M, max_streams: 30, max_ack_pending: 7}
    users: [
      {user: a, password: a}
      {user: only_info, password: a, permissions: {publish: ["$JS.API.INFO"], subscribe: ["_INBOX.>"]}}
    ]
  }
  WITHOUT { users: [{user: b, password: a}] }
}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with run_nats_server(jetstream=True, config_text=CONFIG) as server:
        yield server


def at(server: NatsServer, user: str) -> tuple[str, str]:
    return "--url", server.url.replace("nats://", f"nats://{user}:a@")


def test_account_info_shows_limits_and_use(server: NatsServer) -> None:
    text_of("stream", "create", "S", "--max-bytes", "1M", *at(server, "a"))
    error_of("stream", "info", "missing", *at(server, "a"))
    found = json_of("account", "info", *at(server, "a"))
    assert (found["streams"], found["reserved_storage"], found["limits"]["max_streams"]) == (1, 2**20, 30)
    assert found["api"]["errors"] == 1
    assert (found["user"]["user"], found["user"]["account"]) == ("a", "LIMITED")
    lines = [line.split() for line in text_of("account", "info", *at(server, "a")).splitlines()]
    assert ["account", "LIMITED"] in lines
    assert ["API", "errors", "1"] in lines
    assert ["bytes", "on", "disk", "0", "1,048,576", "50,000,000"] in lines
    assert ["consumers", "0", "-", "no", "limit"] in lines
    assert lines[-1] == [*["messages", "of", "one", "consumer", "without", "an", "ack"], "-", "-", "7"]


def test_account_info_without_the_permission_to_ask_for_the_user(server: NatsServer) -> None:
    found = json_of("account", "info", *at(server, "only_info"))
    assert (found["user"]["user"], found["user"]["account"]) == (None, None)
    assert found["user"]["server"].startswith("nats-server ")


def test_account_without_jetstream(server: NatsServer) -> None:
    assert "JetStream not enabled for account" in error_of("account", "info", *at(server, "b"))
    said = error_of("account", "info", "--url", "liftbridge://127.0.0.1:1", code=2)
    assert "account info needs JetStream" in said
