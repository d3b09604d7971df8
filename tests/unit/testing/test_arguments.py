"""The test servers refuse wrong arguments before anything is started, and write their configuration."""

from __future__ import annotations

import ssl
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.testing import (
    FaultProxy,
    LiftbridgeAdmin,
    run_gateway,
    run_liftbridge,
    run_nats_server,
)
from liftenvelope.testing._binaries import LiftbridgeBinary
from liftenvelope.testing._liftbridge import LiftbridgeNode, _flatten

if TYPE_CHECKING:
    from pathlib import Path

DEADLY_NAMES = [
    *("", " ", "a b", "a\tb", "a\0b", "a\u2003b", "a\x7fb", "\ud800"),
    *(".a", "a.", "a..b", ".", "a.*", ">", "x>", "a" * 241, "é" * 121),
    *("__cursors", "__activity"),
]


@pytest.fixture
def admin() -> LiftbridgeAdmin:
    # Nothing listens there: a request that is sent is another error.
    return LiftbridgeAdmin(["127.0.0.1:1"])


@pytest.mark.parametrize("name", DEADLY_NAMES)
def test_names_that_kill_the_server(admin: LiftbridgeAdmin, name: str) -> None:
    for call in (admin.create_stream, admin.delete_stream, admin.pause_stream, admin.set_stream_readonly):
        with pytest.raises(UsageError, match="stream name"):
            call(name)


@pytest.mark.parametrize(
    "settings",
    [
        {"partitions": 0},
        {"partitions": -1},
        {"replication_factor": 0},
        {"replication_factor": -2},
        {"cleaner_interval": -1},
        {"cleaner_interval": 2**63 // 1_000_000 + 1},
        {"segment_max_bytes": -1},
        {"no_such_setting": 1},
    ],
)
def test_settings_that_kill_the_server(admin: LiftbridgeAdmin, settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings)).partition("_")[0]):
        admin.create_stream("fine", **settings)


def test_subject_of_a_stream_is_given_by_keyword(admin: LiftbridgeAdmin) -> None:
    # The client's create_stream takes the subject first: a mix-up must not make another stream.
    with pytest.raises(TypeError, match="positional"):
        admin.create_stream("subject", "name")  # type: ignore[call-arg]


def test_read_of_less_than_nothing(admin: LiftbridgeAdmin) -> None:
    for arguments in ({"count": -1}, {"start": -1, "count": 1}):
        with pytest.raises(UsageError, match="-1"):
            admin.read("fine", **arguments)


def test_arguments_of_gateways_that_another_process_can_not_get() -> None:
    for name, value in (("tls", ssl.create_default_context()), ("id", object()), ("limits", object())):
        with pytest.raises(UsageTypeError, match=f"{name} of config must be a value of JSON, .* got "):
            run_gateway(config={name: value})


def test_arguments_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="nodes must be 1 or 3, got 2"):
        run_liftbridge(2)
    with pytest.raises(UsageError, match="exclude"):
        run_liftbridge(nats_url="nats://x:1", nats_server=run_nats_server())
    with pytest.raises(UsageError, match="port must be 1 to 65535, or None, got 0"):
        run_nats_server(port=0)
    with pytest.raises(UsageError, match="max_payload must be at least 1 byte, or None, got 0"):
        run_nats_server(max_payload=0)
    with pytest.raises(UsageError, match="address"):
        FaultProxy("localhost")
    with pytest.raises(UsageError, match="at least one"):
        LiftbridgeAdmin([])


def test_policy_without_the_tls_settings_that_it_needs() -> None:
    with pytest.raises(UsageError, match=r"got no tls\.cert, tls\.client\.auth\.ca"):
        run_liftbridge(policy="", config={"tls": {"key": "k"}})
    config = {"tls.key": "k", "tls.cert": "c", "tls.client.auth.ca": "a"}
    with pytest.raises(UsageError, match="policy needs tls with a client certificate, got None"):
        run_liftbridge(policy="", config=config)


def test_what_is_not_started_has_no_port() -> None:
    server, proxy = run_nats_server(), FaultProxy("nats://localhost:4222")
    assert proxy.target == "localhost:4222"
    assert FaultProxy("::1", 4222).target == "[::1]:4222"
    assert FaultProxy("nats://user:p@ss@localhost:4222").target == "localhost:4222"
    for thing in (server, proxy):
        with pytest.raises(UsageError, match="no port"):
            _ = thing.port
    with pytest.raises(UsageError, match="not running"):
        proxy.cut()
    server.close()
    proxy.close()


def test_nested_and_dotted_configuration_are_the_same() -> None:
    assert _flatten({"a": {"b.c": 1, "d": {"e": [2]}}, "f": 3}) == {"a.b.c": 1, "a.d.e": [2], "f": 3}


@pytest.mark.parametrize("telemetry", [False, True])
def test_telemetry_is_switched_off_where_there_is_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, telemetry: bool
) -> None:
    script = tmp_path / "server"
    script.write_text("#!/bin/sh\nexit 0\n")
    script.chmod(0o755)
    node = LiftbridgeNode("n1", tmp_path / "n1", lambda: "nats://127.0.0.1:1", {"listen": "x"}, {})
    node._port = 1
    binary = LiftbridgeBinary(script, "v1", telemetry)
    monkeypatch.setattr("liftenvelope.testing._liftbridge.find_liftbridge", lambda: binary)
    node._launch()
    node.stop()
    text = (tmp_path / "n1" / "liftbridge.yaml").read_text()
    assert ('"telemetry.enabled": false' in text) == telemetry
    assert '"listen": "x"' in text


def test_plugin_loads_nothing_heavy() -> None:
    code = (
        "import sys, liftenvelope.testing.plugin;"
        "print([m for m in ('h2', 'google.protobuf', 'asyncio', 'nats', 'grpc') if m in sys.modules])"
    )
    # pytest itself brings none of these.
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
