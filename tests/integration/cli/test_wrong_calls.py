"""Errors of the command: they name the option or the object, and say what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.cli.commands import error_of, run, text_of

HUGE = "99999999999999999999999"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("stream info missing", "stream not found: 'missing' (code 404, error 10059)"),
        ("stream get missing 1", "stream not found: 'missing'"),
        ("stream rm missing --yes", "stream not found: 'missing'"),
        ("tail missing", "stream not found: 'missing'"),
        ("consumer info missing c", "stream not found: 'missing'"),
        ("consumer info {} missing", "consumer not found: 'missing' of stream '{}' (code 404, error 10014)"),
        ("consumer rm {} missing --yes", "consumer not found: 'missing' of stream '{}'"),
        ("stream get {} 99", "stream '{}' has no message 99: no message found (code 404, error 10037)"),
        ("stream get {} --last-for a", "stream '{}' has no message on 'a': no message found"),
        ("stream rmm {} 99 --yes", "stream '{}' has no message 99: "),
        (
            "stream edit {} --storage memory",
            "can not change storage type: create another stream for it",
        ),
    ],
)
def test_errors_of_jetstream_name_what_is_missing(
    nats_url: str, stream: str, arguments: str, expected: str
) -> None:
    words = arguments.format(stream).split()
    assert expected.format(stream) in error_of(*words, "--url", nats_url)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            f"publish {{}} x --expected-sequence {HUGE}",
            "--expected-sequence must be at most 184467440",
        ),
        (
            "publish {} x --ttl 999999999w",
            "--ttl must be from 1 second to 292 years, or 'never', got 604799999395200",
        ),
        (f"stream purge {{}} --yes --seq {HUGE}", "--seq must be at most 9223372036854775807"),
        (
            "tail {} --start 9999-12-31",
            "--start must be in the years 1678 to 2261, got 9999-12-31T00:00",
        ),
        ("consumer create {} c --deliver 0001-01-01", "--deliver must be in the years 1678 to 2261"),
        (
            "publish {} --file /missing",
            "--file must be a file that can be read, got '/missing': No such",
        ),
        (
            "publish {} --lines --file /tmp",
            "--file must be a file that can be read, got '/tmp': Is a",
        ),
        ("consumer pause {} c 0", "DURATION must be a positive number of seconds, got 0"),
        ("consumer unpin {} c g", "GROUP must be a priority group, but 'c' has none, got 'g'"),
        ("bench sub {} --count 1 --idle 0", "--idle must be a positive number of seconds"),
        (
            "bench pub {} --save /missing/run.json",
            "--save must be in a folder that exists, got '/missing",
        ),
        ("bench pub {} --compare /missing", "--compare must be a file that can be read, got '/missing': No"),
        (f"consumer reset {{}} c --to-sequence {HUGE}", "--to-sequence must be at most 9223372036854775807"),
        ("tail {} --subject=", "--subject must not be empty, got ''"),
        (f"stream create other --replicas {HUGE}", "--replicas must be at most"),
        ("stream get {} --last-for=", "--last-for must not be empty, got ''"),
        (
            "consumer create {} d --sample 5x",
            "'--sample': must be a percentage such as 30%, up to 100%, got '5x'",
        ),
        (
            "group reset g --to-datetime 5",
            "'--to-datetime': must be a time such as 2026-01-31T12:00, got '5'",
        ),
        ("consumer create {} d --filter=", "--filter must not be empty, got ''"),
        ("stream watch a.b", "stream name must not have a '.', got 'a.b'"),
    ],
)
def test_usage_errors_name_the_option(nats_url: str, stream: str, arguments: str, expected: str) -> None:
    text_of("consumer", "create", stream, "c", "--url", nats_url)
    words = arguments.format(stream).split()
    assert expected in error_of(*words, "--url", nats_url, code=2)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("read {} --to a.ndjson --start 9999-12-31", "--start must be a time before 2262"),
        ("read {} --to a.ndjson --start 5 --stop 2", "--stop must be at least start, 5, got 2"),
        ("read {} --to /missing/a.parquet", "--to must be in a folder that exists, got '/missing/a.parquet'"),
        ("read {} --to /missing/a.ndjson", "--to must be in a folder that exists, got '/missing/a.ndjson'"),
        (
            "write {} --from /missing.ndjson",
            "--from must be a file that can be read, got '/missing",
        ),
        (
            "write {} --from /missing.parquet",
            "--from must be a file that can be read, got '/missing",
        ),
    ],
)
def test_usage_errors_of_files_name_the_option(
    nats_url: str, stream: str, arguments: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text_of("publish", f"{stream}.a", "-", "--lines", "--url", nats_url, given="1\n2\n3\n4\n5\n6\n")
    assert expected in error_of(*arguments.format(stream).split(), "--url", nats_url, code=2)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("decode --file /missing", "--file must be a file that can be read, got '/missing': No such file"),
        ("restore / S --url liftbridge://127.0.0.1:1", "--url must be a nats:// URL"),
        ("demo --messages 0", "--messages must be from 1 to 1,000,000,000, got 0"),
        ("group describe  --topic S --url liftbridge://127.0.0.1:1", "must not be empty, got ''"),
    ],
)
def test_usage_errors_before_a_connection_name_the_option(arguments: str, expected: str) -> None:
    assert expected in error_of(*arguments.split(" "), code=2)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("stream create {} --max-age 999999999w", "--max-age must be at most 9223372036854 milliseconds"),
        ("stream create {} --cleaner-interval 999999999w", "--cleaner-interval must be at most 922"),
        ("stream create {} --partitions 10001", "'--partitions': 10001 is not in the range 1<=x<=10000"),
        ("stream pause {} -p 99999999999", "--partition must be at most 2147483647"),
        (
            "publish {} x -H a=b -H a=c",
            "--header must be given once for each name with Liftbridge",
        ),
        ("group reset g --topic {} --to-datetime 9999-12-31", "--to-datetime must be a time before 2262"),
        (
            "tail {} --start 9999-12-31",
            "--start must be a time before 2262, whose nanoseconds fit",
        ),
    ],
)
def test_usage_errors_with_liftbridge_name_the_option(
    at: tuple[str, str], name: str, arguments: str, expected: str
) -> None:
    text_of("stream", "create", name, *at)
    assert expected in error_of(*arguments.format(name).split(), *at, code=2)


def test_offset_that_a_stream_does_not_check_is_reported(at: tuple[str, str], name: str) -> None:
    text_of("stream", "create", name, *at)
    done = run("publish", name, "x", "--expected-offset", "50", "--json", *at)
    assert (done.exit_code, json.loads(done.stdout)["offset"]) == (1, 0)
    assert "the message was stored at offset 0, not at 50: the stream checks none" in done.stderr
    text_of("publish", name, "x", "--expected-offset", "1", *at)


def test_configuration_of_another_type_is_refused(nats_url: str, stream: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("[]")
    edit = ("stream", "edit", stream, "--config", str(file), "--url", nats_url)
    assert "--config must be a file with a JSON object, got list" in error_of(*edit, code=2)
