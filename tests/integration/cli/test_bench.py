"""``liftenvelope bench``, on nats-server, Liftbridge and the gateway."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from liftenvelope.testing import FaultProxy, GatewayCluster, LiftbridgeCluster, NatsServer
from tests.integration.cli.commands import error_of, json_of, run, started, text_of


@pytest.fixture(params=["jetstream", "liftbridge", "gateway"])
def at(request: pytest.FixtureRequest) -> tuple[str, str]:
    server: NatsServer | LiftbridgeCluster | GatewayCluster = request.getfixturevalue(
        f"{request.param}_server"
    )
    return "--url", server.url if isinstance(server, NatsServer) else f"liftbridge://{server.addresses[0]}"


def test_measured_publishes_are_stored_and_read(at: tuple[str, str], name: str) -> None:
    text_of("stream", "create", name, *at)
    done = json_of("bench", "pub", name, "--count", "300", "--size", "1K", "--in-flight", "20", *at)
    assert (done["messages"], done["bytes"], done["failed"]) == (300, 300 * 1024, 0)
    latency = done["latency_seconds"]
    assert 0 < latency["p50"] <= latency["p99"] <= latency["max"] <= done["seconds"]
    read = json_of("bench", "sub", name, "--count", "300", "--idle", "60", *at)
    assert (read["messages"], read["bytes"], read["latency_seconds"]) == (300, 300 * 1024, {})
    shown = text_of("bench", "pub", name, "--count", "50", *at)
    for text in ("latency p99", "messages/s", "█"):
        assert text in shown


def test_latency_of_reading(at: tuple[str, str], name: str) -> None:
    text_of("stream", "create", name, *at)
    with started("bench", "sub", name, "--start", "new", "-n", "5", "--idle", "60", "--json", *at) as process:
        assert process.stdout is not None
        while process.poll() is None:  # until it has subscribed and has seen enough
            text_of("publish", name, "x", *at)
        done = json.loads(process.stdout.read())
    assert done["messages"] == 5
    assert done["latency_seconds"]["p50"] >= 0


def test_stream_with_fewer_messages_ends_after_a_silence(at: tuple[str, str], name: str) -> None:
    text_of("stream", "create", name, *at)
    text_of("publish", name, "x", *at)
    done = run("bench", "sub", name, "--idle", "2", "--json", *at)
    assert json.loads(done.stdout)["messages"] == 1
    assert done.stderr == "Note: 1 of 10,000 messages came before 2 s of silence\n"


@pytest.mark.parametrize("idle", ["0.1", "60"])
def test_read_from_a_server_that_does_not_answer_fails(at: tuple[str, str], name: str, idle: str) -> None:
    text_of("stream", "create", name, *at)
    with FaultProxy(at[1]) as proxy:
        scheme = at[1].partition("://")[0]
        proxy.stall()
        url = ("--url", f"{scheme}://{proxy.address}")
        error = error_of("bench", "sub", name, "--idle", idle, "--timeout", "1", *url)
    assert error.startswith("Error: can't connect to ")


def test_failed_publishes_exit_with_1(jetstream_server: NatsServer, at: tuple[str, str], name: str) -> None:
    done = run("bench", "pub", f"{name}-missing", "--count", "20", *at)
    assert done.exit_code == 1
    assert "Error: " in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize("kind", ["liftbridge", "gateway"])
def test_acks_of_envelopes_are_measured(request: pytest.FixtureRequest, kind: str, name: str) -> None:
    cluster: LiftbridgeCluster | GatewayCluster = request.getfixturevalue(f"{kind}_server")
    cluster.create_stream(name)
    url = ("--url", cluster.nats_url)
    done = json_of("bench", "ack", name, "--count", "200", "--in-flight", "20", *url)
    assert (done["messages"], done["failed"]) == (200, 0)
    assert 0 < done["latency_seconds"]["p50"] <= done["latency_seconds"]["max"]
    assert cluster.partition_metadata(name).newestOffset == 199


def test_run_is_saved_and_compared_with_one_of_the_same_parameters(
    jetstream_server: NatsServer, name: str, tmp_path: Path
) -> None:
    url, file = ("--url", jetstream_server.url), str(tmp_path / "run.json")
    text_of("stream", "create", name, *url)
    call = ("bench", "js", name, "--count", "50", *url)
    text_of(*call, "--save", file)
    done = json_of(*call, "--compare", file)
    assert done["compared_with"] == json.loads(Path(file).read_text())["at"]
    assert set(done["change_percent"]) == {"rate", *(f"latency {one}" for one in done["latency_seconds"])}
    assert " %" in text_of(*call, "--compare", file, "--save", file)
    error = error_of("bench", "js", name, "--count", "51", "--compare", file, *url, code=2)
    assert "same parameters, got count 50 instead of 51" in error
    assert json_of("stream", "info", name, *url)["state"]["messages"] == 150
    Path(file).write_text("[]")
    assert "a file that --save has written" in error_of(*call, "--compare", file, code=2)


def test_read_is_saved_and_compared(jetstream_server: NatsServer, name: str, tmp_path: Path) -> None:
    url, file = ("--url", jetstream_server.url), str(tmp_path / "run.json")
    text_of("stream", "create", name, *url)
    text_of("publish", name, "x", "--count", "20", *url)
    call = ("bench", "sub", name, "--count", "20", "--idle", "60", *url)
    text_of(*call, "--save", file)
    assert set(json_of(*call, "--compare", file)["change_percent"]) == {"rate"}
    wrong = error_of("bench", "sub", name, "--count", "19", "--compare", file, *url, code=2)
    assert "same parameters, got count 20 instead of 19" in wrong
    publishing = error_of("bench", "js", name, "--count", "20", "--compare", file, *url, code=2)
    assert "kind 'jetstream reading' instead of 'jetstream'" in publishing


@pytest.mark.parametrize(("command", "more"), [("pub", ()), ("js", ()), ("sub", ("--idle", "60"))])
def test_run_is_compared_with_the_last_one_of_the_same_call(
    jetstream_server: NatsServer, name: str, state: Path, command: str, more: tuple[str, ...]
) -> None:
    url = ("--url", jetstream_server.url)
    for stream in (name, f"{name}-other"):
        text_of("stream", "create", stream, *url)
        text_of("publish", stream, "x", "--count", "20", *url)
    call = ("bench", command, name, "--count", "20", *more, *url)
    assert "compared_with" not in json_of(*call)
    (file,) = state.rglob("*.json")
    first = json.loads(file.read_text())
    done = json_of(*call)
    assert done["compared_with"] == first["at"]
    assert set(done["change_percent"]) == set(first["values"])
    assert json.loads(file.read_text())["values"]["rate"] == done["messages_per_second"]
    assert "compared with  the run of " in text_of(*call)
    assert "compared_with" not in json_of(*call, "--no-history")
    for others in (("--count", "19"), ()):
        target = name if others else f"{name}-other"
        other = ("bench", command, target, *(others or ("--count", "20")), *more, *url)
        assert "compared_with" not in json_of(*other)
    assert len([*state.rglob("*.json")]) == 3
    file.write_text("{")
    assert "compared_with" not in json_of(*call)
    assert "compared_with" in json_of(*call)


def test_run_that_cannot_be_kept_is_reported_and_succeeds(
    jetstream_server: NatsServer, name: str, state: Path
) -> None:
    url = ("--url", jetstream_server.url)
    text_of("stream", "create", name, *url)
    state.write_text("no folder")
    call = ("bench", "js", name, "--count", "5", *url)
    done = run(*call)
    assert done.exit_code == 0
    assert "Note: this run is not kept for a comparison: " in done.stderr
    assert run(*call, "--no-history").stderr == ""


def test_read_that_ends_early_is_not_kept(jetstream_server: NatsServer, name: str, state: Path) -> None:
    url = ("--url", jetstream_server.url)
    text_of("stream", "create", name, *url)
    text_of("bench", "sub", name, "--count", "5", "--idle", "0.2", *url)
    assert not state.exists()


def test_wrong_calls_of_bench(jetstream_server: NatsServer) -> None:
    url = ("--url", jetstream_server.url)
    assert "--partition needs Liftbridge" in error_of("bench", "pub", "x", "-p", "1", *url, code=2)
    assert "bench js needs JetStream" in error_of("bench", "js", "x", "--url", "liftbridge://a", code=2)
    assert "--size must be 0 to" in error_of("bench", "pub", "x", "--size", "1T", *url, code=2)
