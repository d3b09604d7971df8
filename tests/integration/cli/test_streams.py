"""``liftenvelope stream``, on nats-server, Liftbridge and the gateway."""

from __future__ import annotations

import json
import os
import pty
from pathlib import Path

import pytest

from liftenvelope.testing import GatewayCluster, LiftbridgeCluster, run_nats_server
from tests.integration.cli.commands import error_of, json_of, lines_of, run, started, text_of


@pytest.fixture(params=["liftbridge", "gateway"])
def lift_url(request: pytest.FixtureRequest) -> str:
    cluster: LiftbridgeCluster | GatewayCluster = request.getfixturevalue(f"{request.param}_server")
    return f"liftbridge://{cluster.addresses[0]}"


def test_life_of_a_jetstream_stream(nats_url: str, name: str) -> None:
    at = ("--url", nats_url)
    shown = text_of("stream", "create", name, "--subject", f"{name}.>", "--max-age", "7d", *at)
    assert f"{name}.>" in shown
    assert "604800 s" in shown
    text_of("publish", f"{name}.a", "one", "--count", "5", *at)
    assert [one["config"]["name"] for one in json_of("stream", "ls", "--subject", f"{name}.x", *at)] == [name]
    assert name in text_of("stream", "ls", *at)
    info = json_of("stream", "info", name, *at)
    assert info["state"]["messages"] == 5
    assert info["config"]["max_age"] == 7 * 86_400 * 10**9
    assert "sequences" in text_of("stream", "info", name, *at)
    assert json_of("stream", "purge", name, "--keep", "2", "--yes", *at) == {"stream": name, "deleted": 3}
    assert "deleted 1 message of" in text_of("stream", "purge", name, "--seq", "5", "-y", *at)
    assert text_of("stream", "rm", name, "--yes", *at) == f"deleted stream {name}\n"
    assert "stream not found" in error_of("stream", "info", name, *at)
    assert "stream not found" in error_of("stream", "rm", name, "--yes", *at)


def test_edit_changes_what_is_given_and_keeps_the_rest(nats_url: str, name: str) -> None:
    at = ("--url", nats_url)
    text_of("stream", "create", name, "--max-msgs", "10", "--description", "tea", "--deny-delete", *at)
    changes = {"max_msgs": {"old": 10, "new": -1}, "max_bytes": {"old": -1, "new": 2**20}}
    edit = ("stream", "edit", name, "--max-msgs", "-1", "--max-bytes", "1M")
    assert json_of(*edit, "--dry-run", *at) == {"stream": name, "dry_run": True, "changes": changes}
    assert json_of("stream", "info", name, *at)["config"]["max_msgs"] == 10
    table = text_of(*edit, *at).splitlines()
    assert table[0].split() == ["setting", "old", "new"]
    config = json_of("stream", "info", name, *at)["config"]
    assert (config.get("max_msgs"), config["max_bytes"], config["description"]) == (None, 2**20, "tea")
    assert text_of(*edit, *at) == f"stream {name} has these settings already\n"
    assert run("stream", "edit", name, "--storage", "memory", *at).exit_code == 1


def test_configuration_moves_from_stream_to_stream_as_json(nats_url: str, name: str, tmp_path: Path) -> None:
    at, file = ("--url", nats_url), tmp_path / "config.json"
    text_of("stream", "create", name, "--subject", f"{name}.a", "--max-age", "1h", "--discard", "new", *at)
    file.write_text(text_of("stream", "info", name, "--json", *at))
    copy = f"{name}-copy"
    info = json_of("stream", "create", copy, "--config", str(file), "--subject", f"{name}.b", *at)
    assert (info["config"]["name"], info["config"]["subjects"]) == (copy, [f"{name}.b"])
    assert (info["config"]["max_age"], info["config"]["discard"]) == (3600 * 10**9, "new")
    file.write_text("{")
    assert "--config must be a file with JSON" in error_of(
        "stream", "create", name, "--config", str(file), *at, code=2
    )
    file.write_text('{"max_age": "soon"}')
    assert "max_age" in error_of("stream", "create", name, "--config", str(file), *at, code=2)


def test_stream_that_exists_with_another_configuration(nats_url: str, name: str) -> None:
    at = ("--url", nats_url)
    text_of("stream", "create", name, *at)
    assert "already in use" in error_of("stream", "create", name, "--max-msgs", "5", *at)


def test_life_of_a_liftbridge_stream(lift_url: str, name: str) -> None:
    at = ("--url", lift_url)
    created = text_of("stream", "create", name, "--subject", f"{name}.x", "--partitions", "2", *at)
    assert created == f"created stream {name} on subject {name}.x\n"
    listed = {one["name"]: one for one in json_of("stream", "ls", *at)}
    assert (listed[name]["subject"], len(listed[name]["partitions"])) == (f"{name}.x", 2)
    assert not any(one.startswith("__") for one in listed)
    assert any(one["name"] == "__cursors" for one in json_of("stream", "ls", "--all", *at))
    assert name in text_of("stream", "ls", *at)
    text_of("publish", name, "one", "--partition", "1", "--count", "3", *at)
    info = json_of("stream", "info", name, *at)
    assert [one["newest_offset"] for one in info["partitions"]] == [-1, 2]
    assert "committed" in text_of("stream", "info", name, *at)
    assert text_of("stream", "rm", name, "--yes", *at) == f"deleted stream {name}\n"
    assert f"there is no stream '{name}'" in error_of("stream", "info", name, *at)
    assert "stream" in error_of("stream", "rm", name, "--yes", *at)


def test_deletion_is_confirmed_on_a_terminal(nats_url: str, name: str) -> None:
    at = ("--url", nats_url)
    text_of("stream", "create", name, *at)
    for answer, code in (("n", 1), ("y", 0)):
        ours, theirs = pty.openpty()
        with started("stream", "rm", name, *at, stdin=theirs) as process:
            os.close(theirs)
            os.write(ours, f"{answer}\n".encode())
            assert process.stderr is not None
            said = process.stderr.read().decode()
            assert process.wait(240) == code
        os.close(ours)
        assert f"Delete stream '{name}' with its messages?" in said
        assert ("nothing was deleted" in said) is (answer == "n")
        assert run("stream", "info", name, *at).exit_code == 1 - code


def test_pause_resume_and_readonly(lift_url: str, name: str) -> None:
    at = ("--url", lift_url)
    text_of("stream", "create", name, "--partitions", "2", *at)

    def states(field: str) -> list[bool]:
        return [one[field] for one in json_of("stream", "info", name, *at)["partitions"]]

    assert text_of("stream", "pause", name, "--partition", "1", *at) == f"paused partitions 1 of {name}\n"
    assert states("paused") == [False, True]
    assert "paused" in text_of("stream", "info", name, *at)
    text_of("stream", "resume", name, *at)
    while any(states("paused")):  # it was probed in too short a time
        pass
    text_of("stream", "readonly", name, *at)
    assert states("readonly") == [True, True]
    assert "read-only" in error_of("publish", name, "x", *at).lower().replace("readonly", "read-only")
    text_of("stream", "readonly", name, "--off", "--partition", "0", *at)
    assert states("readonly") == [False, True]
    assert error_of("stream", "pause", name, "--partition", "9", *at).startswith("Error: ")


def test_watch_shows_what_was_done(lift_url: str, name: str) -> None:
    at = ("--url", lift_url)
    text_of("stream", "create", name, "--partitions", "2", *at)
    text_of("stream", "rm", name, "--yes", *at)
    events: list[tuple[str, object]] = []
    while ("StreamDeleted", name) not in events:  # servers record an event soon after its cause
        found = lines_of("stream", "watch", "--start", "1h", "--no-follow", *at)
        events = [(one["event"], one.get("stream")) for one in found]
    assert ("StreamCreated", name) in events
    shown = text_of("stream", "watch", "--start", "earliest", "--limit", "1", *at)
    assert "StreamCreated" in shown
    assert len(shown.splitlines()) == 1


def test_get_and_delete_of_one_message_and_subjects(nats_url: str, stream: str) -> None:
    at = ("--url", nats_url)
    for subject, value in (("a", "one"), ("b", "two"), ("a", "three")):
        text_of("publish", f"{stream}.{subject}", value, "--header", "unit=C", *at)
    first = json_of("stream", "get", stream, "1", *at)
    assert (first["sequence"], first["subject"], first["value"]) == (1, f"{stream}.a", "one")
    assert first["headers"] == {"unit": "C"}
    (read,) = lines_of("tail", stream, "--start", "1", "--limit", "1", *at)
    assert read == first
    assert text_of("stream", "get", stream, "--last-for", f"{stream}.*", "--raw", *at) == "three\n"
    assert "sequence 2  " in text_of("stream", "get", stream, "2", *at)
    assert json_of("stream", "subjects", stream, *at) == {f"{stream}.a": 2, f"{stream}.b": 1}
    assert json_of("stream", "subjects", stream, "--filter", f"{stream}.b", *at) == {f"{stream}.b": 1}
    table = text_of("stream", "subjects", stream, *at).splitlines()
    assert [line.split() for line in table] == [
        ["subject", "messages"],
        [f"{stream}.a", "2"],
        [f"{stream}.b", "1"],
    ]
    deleted = json_of("stream", "rmm", stream, "2", "--yes", *at)
    assert deleted == {"stream": stream, "sequence": 2, "deleted": True}
    assert "no message found" in error_of("stream", "get", stream, "2", *at)
    assert json_of("stream", "subjects", stream, *at) == {f"{stream}.a": 2}


def test_watch_shows_advisories_of_jetstream(nats_url: str, name: str) -> None:
    at = ("--url", nats_url)
    with started("stream", "watch", name, "--json", "--limit", "5", *at) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        assert watching.stderr.readline() == b"Note: watching for events until Ctrl-C\n"
        text_of("stream", "create", f"{name}-other", *at)
        text_of("stream", "create", name, *at)
        text_of("stream", "edit", name, "--description", "tea", *at)
        text_of("consumer", "create", name, "worker", *at)
        text_of("consumer", "rm", name, "worker", "--yes", *at)
        text_of("stream", "rm", name, "--yes", *at)
        events = [json.loads(line) for line in watching.stdout.read().splitlines()]
        assert watching.wait(240) == 0
    found = [(one["event"], one["stream"], one.get("consumer"), one["action"]) for one in events]
    assert found == [
        ("stream_action", name, None, "create"),
        ("stream_action", name, None, "modify"),
        ("consumer_action", name, "worker", "create"),
        ("consumer_action", name, "worker", "delete"),
        ("stream_action", name, None, "delete"),
    ]


def test_watch_shows_requests_of_the_api_as_lines(nats_url: str, name: str) -> None:
    at = ("--url", nats_url)
    with started("stream", "watch", name, "--api", "--limit", "1", *at) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        watching.stderr.readline()
        assert run("stream", "info", name, *at).exit_code == 1
        text = watching.stdout.read().decode()
        assert watching.wait(240) == 0
    assert "  api_audit  " in text
    assert f"subject=$JS.API.STREAM.INFO.{name}" in text
    assert "client=" in text


def test_watch_fails_if_the_user_may_not_subscribe_to_advisories() -> None:
    user = {"user": "app", "password": "x", "permissions": {"subscribe": "_INBOX.>"}}
    with run_nats_server(jetstream=True, config={"authorization": {"users": [user]}}) as server:
        error = error_of("stream", "watch", "--url", f"nats://app:x@{server.address}")
    assert "can't subscribe to $JS.EVENT.ADVISORY.>" in error
    assert "permissions violation" in error


def test_stream_with_many_subjects_is_shown_in_short(nats_url: str, name: str) -> None:
    subjects = [word for number in range(60) for word in ("--subject", f"{name}.{number}")]
    shown = text_of("stream", "create", name, *subjects, "--url", nats_url)
    assert "and 10 more" in shown
    assert f"{name}.2 and 57 more" in text_of("stream", "ls", "--url", nats_url)


def test_empty_list_of_streams() -> None:
    with run_nats_server(jetstream=True) as server:
        assert json_of("stream", "ls", "--url", server.url) == []
        assert text_of("stream", "ls", "--url", server.url).split()[0] == "stream"


def test_config_is_valid_json_for_other_programs(nats_url: str, name: str) -> None:
    text_of("stream", "create", name, "--url", nats_url)
    done = run("stream", "info", name, "--json", "--url", nats_url)
    assert json.loads(done.stdout_bytes)["config"]["name"] == name
