"""``liftenvelope read`` and ``write`` with payload formats, schema files and dead letters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

import liftenvelope
from liftenvelope import bulk
from liftenvelope.cli._root import root
from liftenvelope.payload import Avro, Protobuf
from liftenvelope.testing import LiftbridgeCluster, NatsServer
from tests.integration.bulk_streams import jetstream, make_stream, publish
from tests.unit.payload.test_protobuf import descriptor_set

ROWS = [{"id": 1, "price": 2.5, "note": "gift"}, {"id": 2, "price": 0.5}]
TABLE = pa.Table.from_pylist(ROWS, pa.schema({"id": pa.int64(), "price": pa.float64(), "note": pa.string()}))
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": "double"},
        {"name": "note", "type": ["null", "string"]},
    ],
}
NAMES = {"id": "int64", "price": "float64", "note": "string"}


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with jetstream() as running:
        yield running


@pytest.fixture
def url(server: NatsServer, name: str) -> str:
    make_stream(server.url, name)
    make_stream(server.url, f"{name}-BAD")
    return server.url


@pytest.mark.parametrize("kind", ["ndjson", "parquet"])
def test_read_that_fails_leaves_the_file_of_an_earlier_one(
    url: str, name: str, tmp_path: Path, kind: str
) -> None:
    publish(url, [(f"{name}.x", value, None) for value in (b'{"id": 1}', b"no json")])
    path = tmp_path / f"out.{kind}"
    path.write_text("of an earlier read")
    done = CliRunner().invoke(root, ["read", name, "--url", url, "--payload", "json", "--to", str(path)])
    assert done.exit_code == 1, done.output
    assert path.read_text() == "of an earlier read"
    assert list(tmp_path.iterdir()) == [path]


def test_lines_go_into_a_pipe_that_has_a_name(url: str, name: str, tmp_path: Path) -> None:
    publish(url, [(f"{name}.x", b"one", None)])
    os.mkfifo(pipe := tmp_path / "pipe")
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    try:
        done = CliRunner().invoke(root, ["read", name, "--url", url, "--to", str(pipe)])
        assert done.exit_code == 0, done.output
        assert json.loads(reader.communicate()[0])["value"] == "one"
    finally:
        reader.kill()  # it waits for a writer
        reader.wait()
    assert pipe.is_fifo()


@pytest.mark.parametrize("kind", ["ndjson", "parquet"])
def test_read_into_a_link_replaces_the_file_that_it_names(
    url: str, name: str, tmp_path: Path, kind: str
) -> None:
    publish(url, [(f"{name}.x", b"one", None)])
    (tmp_path / "data").mkdir()
    file, link = tmp_path / "data" / f"orders.{kind}", tmp_path / f"latest.{kind}"
    file.write_text("of an earlier read")
    file.chmod(0o604)
    link.symlink_to(file)
    assert run("read", name, "--url", url, "--to", str(link)).exit_code == 0
    assert link.readlink() == file
    assert b"one" in file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o604


@pytest.mark.parametrize("to", ["/dev/fd/1", "/proc/self/fd/1", "link", "out.ndjson"])
def test_file_that_is_standard_output_is_written_in_place(
    url: str, name: str, tmp_path: Path, to: str
) -> None:
    publish(url, [(f"{name}.x", b"one", None)])
    (tmp_path / "link").symlink_to("/dev/stdout")
    with (tmp_path / "out.ndjson").open("w+b") as out:
        command = [sys.executable, "-m", "liftenvelope", "read", name, "--url", url, "--to", to]
        subprocess.run(command, stdout=out, cwd=tmp_path, check=True)
        assert json.loads(out.read())["value"] == "one"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link", "out.ndjson"]


def test_file_in_a_folder_without_the_right_to_write_is_written_in_place(
    url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(url, [(f"{name}.x", b"one", None)])
    path = tmp_path / "out.ndjson"
    path.write_text("of an earlier read")
    same = path.stat().st_ino
    monkeypatch.setattr(os, "access", lambda *_: False)  # a right that root always has
    assert run("read", name, "--url", url, "--to", str(path)).exit_code == 0
    assert json.loads(path.read_text())["value"] == "one"
    assert path.stat().st_ino == same


@pytest.fixture
def orders(tmp_path: Path) -> str:
    """A Parquet file beside the files of the schemas."""
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "shop.binpb").write_bytes(descriptor_set())
    (tmp_path / "names.json").write_text(json.dumps(NAMES))
    pq.write_table(TABLE, tmp_path / "orders.parquet")
    return str(tmp_path / "orders.parquet")


def options_of(kind: str, folder: Path) -> list[str]:
    schema = {"avro": "order.avsc", "protobuf": "shop.binpb"}.get(kind, "names.json")
    message = ["--message", "shop.Order"] if kind == "protobuf" else []
    return ["--payload", kind, "--schema", str(folder / schema), *message]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root, list(arguments), env={"LIFTENVELOPE_URL": ""})


def rows_of(done: Result) -> list[dict[str, Any]]:
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("kind", ["json", "msgpack", "arrow", "avro", "protobuf"])
def test_schema_files_encode_and_decode(url: str, name: str, orders: str, tmp_path: Path, kind: str) -> None:
    options = ("--url", url, *options_of(kind, tmp_path))
    done = run("write", name, "--from", orders, "--subject", f"{name}.x", *options)
    assert done.exit_code == 0, done.output
    assert rows_of(run("read", name, "--columns", "id,price,note", *options)) == ROWS
    copy = tmp_path / "copy.parquet"
    assert run("read", name, "--to", str(copy), "--columns", "id,price,note", *options).exit_code == 0
    assert pq.read_table(copy).equals(TABLE)


def test_messages_are_those_of_the_python_formats(url: str, name: str, orders: str, tmp_path: Path) -> None:
    for kind in ("avro", "protobuf"):
        words = ("--from", orders, "--subject", f"{name}.{kind}", "--url", url)
        assert run("write", name, *words, *options_of(kind, tmp_path)).exit_code == 0
    formats = {"avro": Avro(AVRO), "protobuf": Protobuf((tmp_path / "shop.binpb", "shop.Order"))}
    for kind, payload in formats.items():
        read = bulk.read(url, name, subjects=f"{name}.{kind}", payload=payload, columns=TABLE.column_names)
        assert read.read_all().equals(TABLE), kind


def test_folder_and_follow_take_a_schema(url: str, name: str, orders: str, tmp_path: Path) -> None:
    options = ("--url", url, *options_of("avro", tmp_path))
    assert run("write", name, "--from", orders, "--subject", f"{name}.x", *options).exit_code == 0
    assert run("read", name, "--to", f"{tmp_path}/archive/", *options).exit_code == 0
    (file,) = (tmp_path / "archive").iterdir()
    assert pq.read_table(file)["price"].to_pylist() == [2.5, 0.5]
    followed = run("read", name, "--follow", "-s", "earliest", "-n", "2", "--columns", "id", *options)
    assert rows_of(followed) == [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize("to", ["-", "out.parquet", "archive/"])
def test_bad_messages_go_to_the_dead_letter_stream(
    url: str, name: str, orders: str, tmp_path: Path, to: str
) -> None:
    options = ("--url", url, *options_of("avro", tmp_path))
    assert run("write", name, "--from", orders, "--subject", f"{name}.x", *options).exit_code == 0
    publish(url, [(f"{name}.x", b"oops", {"Color": "red"})])
    assert "is bad" in run("read", name, *options).output
    letter = ("--dead-letter", f"{name}-BAD", "--dead-letter-subject", f"{name}-BAD.orders")
    place = to if to == "-" else f"{tmp_path}/{to}"
    done = run("read", name, "--to", place, *options, *letter)
    assert done.exit_code == 0, done.output
    (found,) = bulk.read(url, f"{name}-BAD").read_all().to_pylist()
    headers = dict(found["headers"])
    assert (found["value"], found["subject"]) == (b"oops", f"{name}-BAD.orders")
    assert (headers["Color"], headers["Liftenvelope-Bad-Offset"]) == (b"red", b"2")


def test_dead_letters_of_liftbridge_need_no_subject(
    gateway_server: LiftbridgeCluster, name: str, tmp_path: Path
) -> None:
    address = gateway_server.addresses[0]
    with liftenvelope.connect_blocking(address) as client:
        for stream in (name, f"{name}-bad"):
            client.create_stream(stream, stream)
        client.publish_many(name, [b'{"id": 1}', b"oops"], partition=0)
    (tmp_path / "names.json").write_text(json.dumps(NAMES))
    options = ("--url", f"liftbridge://{address}", *options_of("json", tmp_path))
    done = run("read", name, "--columns", "offset,id", "--dead-letter", f"{name}-bad", *options)
    assert rows_of(done) == [{"offset": 0, "id": 1}]
    assert bulk.read(address, f"{name}-bad").read_all()["value"].to_pylist() == [b"oops"]


def test_json_object_has_the_options_of_a_format(url: str, name: str) -> None:
    publish(url, [(f"{name}.x", b'{"id": 1, "more": true}', None)])
    payload = json.dumps({"format": "json", "schema": {"id": "int64"}, "unknown": "keep"})
    done = run("read", name, "--url", url, "--payload", payload, "--columns", "id,extra")
    assert rows_of(done) == [{"id": 1, "extra": '{"more":true}'}]


def test_read_goes_on_inside_a_message(url: str, name: str, tmp_path: Path) -> None:
    bulk.write(url, name, pa.table({"id": range(7)}), subject=f"{name}.x", payload="arrow", pack_rows=3)
    options = ("--url", url, "--payload", "arrow")
    *_, last = rows_of(run("read", name, *options, "--limit", "5"))
    assert last == {"offset": 1, "row": 1, "id": 4}
    place = ("--start", str(last["offset"]), "--start-row", str(last["row"] + 1))
    assert [row["id"] for row in rows_of(run("read", name, *options, *place))] == [5, 6]
    done = run("read", name, *options, *place, "--follow", "--limit", "2")
    assert [row["id"] for row in rows_of(done)] == [5, 6]
    run("read", name, *options, *place, "--to", f"{tmp_path}/rest.parquet")
    assert pq.read_table(tmp_path / "rest.parquet")["id"].to_pylist() == [5, 6]


def test_messages_of_many_rows_have_limits(url: str, name: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(7), "note": ["n" * 2_000] * 7}), path := tmp_path / "rows.parquet")
    words = ("write", name, "--url", url, "--from", str(path), "--subject", f"{name}.x", "--payload", "arrow")
    assert "3 rows stored" in run(*words, "--pack-rows", "3").stderr
    assert "7 rows stored" in run(*words, "--pack-bytes", "4K").stderr
    refused = run(*words, "--pack-bytes", "2K")
    assert refused.exit_code == 2, refused.output
    assert "data: row 0 must have at most 2048 bytes as a message" in refused.stderr
    assert refused.stderr.rstrip().endswith(": raise --pack-bytes")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--start", "1"], "--start-row must be 0 unless messages carry many rows"),
        (["--payload", "arrow"], "--start must be an offset of at least 0"),
        (["--payload", "arrow", "--start", "1", "--to", "rows/"], "--start-row needs a file or -"),
        (["--payload", "arrow", "--start", "1", "--start-row", "-1"], "-1 is not in the range x>=0"),
    ],
)
def test_wrong_rows_to_start_at(words: list[str], text: str) -> None:
    done = run("read", "x", "--url", "nats://127.0.0.1:1", "--start-row", "2", *words)
    assert done.exit_code == 2, done.output
    assert text in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--payload", "xml"], "must be one of raw, json, msgpack, arrow, avro, protobuf, or a JSON object"),
        (["--payload", "[1]"], "or a JSON object with the key format, got '[1]'"),
        (["--payload", "{"], "or a JSON object with the key format, got '{'"),
        (["--payload", '{"format": "xml"}'], "format must be one of"),
        (["--payload", "avro"], "--payload avro needs --schema with a file"),
        (["--payload", "protobuf", "--schema", "shop.binpb"], "--payload protobuf needs --message"),
        (["--payload", "avro", "--schema", "order.avsc", "--message", "x"], "without --payload protobuf"),
        (["--schema", "order.avsc"], "--schema needs --payload"),
        (["--payload", "avro", "--schema", "-"], "--schema must be a file, got '-'"),
        (["--message", "x"], "--message must be left out without --payload protobuf"),
        (
            ["--payload", '{"format": "json"}', "--schema", "names.json"],
            "--schema must be left out with a JSON",
        ),
        (["--payload", '{"format": "json"}', "--message", "x"], "--message must be left out with a JSON"),
        (["--payload", "avro", "--schema", "none.avsc"], "--schema must be a file that can be read"),
        (["--payload", "avro", "--schema", "shop.binpb"], "--schema must be a file with JSON"),
        (["--payload", "avro", "--schema", "list.json"], "--schema must be a file with a JSON object"),
        (["--payload", "avro", "--schema", "names.json"], "must be an Avro schema"),
        (["--payload", "json", "--schema", "order.avsc"], "schema: 'type' must be a type"),
        (["--payload", "protobuf", "--schema", "order.avsc", "--message", "x"], "must be a descriptor set"),
        (["--payload", "protobuf", "--schema", "shop.binpb", "--message", "shop.None"], "'shop.None'"),
    ],
)
def test_wrong_payloads(
    orders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.json").write_text("[]")
    for command in (["read", "x"], ["write", "x", "--from", orders]):
        done = run(*command, "--url", "nats://127.0.0.1:1", *words)
        assert done.exit_code == 2, done.output
        assert text in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--dead-letter", "B"], "--dead-letter needs --payload"),
        (["--dead-letter-subject", "b"], "--dead-letter-subject needs --dead-letter"),
        (
            ["--dead-letter", "B", "--payload", "json", "--on-bad", "fail"],
            "must be left out with --dead-letter",
        ),
        (["--dead-letter", "B", "--payload", "json"], "--dead-letter needs --dead-letter-subject"),
        (["--dead-letter", "x", "--payload", "json"], "--dead-letter must be another stream than STREAM"),
        (["--on-bad", "column"], "--on-bad needs --payload"),
    ],
)
def test_wrong_dead_letters(words: list[str], text: str) -> None:
    done = run("read", "x", "--url", "nats://127.0.0.1:1", *words)
    assert done.exit_code == 2, done.output
    assert text in " ".join(done.output.split())


def test_names_of_formats_are_completed() -> None:
    found = ShellComplete(root, {}, "liftenvelope", "_X").get_completions(["read", "x", "--payload"], "a")
    assert [one.value for one in found] == ["arrow", "avro"]
