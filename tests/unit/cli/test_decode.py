"""``liftenvelope decode``."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.cli._root import root
from liftenvelope.envelope import Ack, marshal_ack, new_message
from liftenvelope.types import AckError

MESSAGE = new_message(b"21.5\xff", key=b"kitchen", headers={"unit": b"C"}, ack_inbox="acks", crc=True)
ACK = marshal_ack(Ack(stream="s\x1b[2J", msg_subject="orders", offset=7, error=AckError.TOO_LARGE))


def run(*arguments: str, given: bytes | None = None) -> Result:
    return CliRunner().invoke(root, ["decode", *arguments], input=given)


@pytest.mark.parametrize(
    "text",
    [
        MESSAGE.hex(),
        MESSAGE.hex().upper(),
        "0x" + MESSAGE.hex(),
        MESSAGE.hex(" "),
        MESSAGE.hex(":"),
        base64.b64encode(MESSAGE).decode(),
        base64.urlsafe_b64encode(MESSAGE).decode().rstrip("="),
    ],
)
def test_message_in_any_form(text: str) -> None:
    done = run(text)
    assert done.exit_code == 0, done.output
    assert "Envelope of type PUBLISH" in done.stdout
    for fact in ("kitchen", "header unit", "21.5\\xff", "CRC-32C matches", "acks"):
        assert fact in done.stdout
    done = run("--json", text)
    found = json.loads(done.stdout)
    assert (found["key"], found["headers"], found["type"]) == ("kitchen", {"unit": "C"}, "publish")
    assert base64.b64decode(found["value_base64"]) == b"21.5\xff"


def test_raw_bytes_from_a_file_and_from_standard_input(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(MESSAGE)
    for done in (run("--file", str(tmp_path / "a")), run(given=MESSAGE), run("--file", "-", given=MESSAGE)):
        assert done.exit_code == 0, done.output
        assert "kitchen" in done.stdout
    assert run(given=MESSAGE.hex().encode() + b"\n").exit_code == 0


def test_ack_with_hostile_name() -> None:
    done = run(ACK.hex())
    assert done.exit_code == 0, done.output
    assert "Envelope of type ACK" in done.stdout
    assert "s\\x1b[2J" in done.stdout
    assert "TOO_LARGE" in done.stdout
    assert json.loads(run("--json", ACK.hex()).stdout)["stream"] == "s\x1b[2J"


@pytest.mark.parametrize(
    ("arguments", "given", "text"),
    [
        ([MESSAGE.hex()[:-2]], None, "at byte"),
        ([MESSAGE[:-1].hex() + "00"], None, "CRC-32C is"),
        (["hello, world"], None, "(at byte"),
        ([""], None, "(at byte 0)"),
        ([], b"\xff\xfe", "(at byte"),
    ],
)
def test_malformed_input_exits_with_1_and_says_where(
    arguments: list[str], given: bytes | None, text: str
) -> None:
    done = run(*arguments, given=given)
    assert done.exit_code == 1, done.output
    assert text in done.stderr
    assert "Traceback" not in done.output


def test_missing_file_exits_with_2() -> None:
    done = run("--file", "/does/not/exist")
    assert done.exit_code == 2, done.output
    assert "--file must be a file that can be read, got '/does/not/exist': No such file" in done.stderr


@given(st.binary(max_size=64) | st.binary(max_size=64).map(lambda tail: MESSAGE[:8] + tail))
def test_any_input_ends_with_fields_or_an_error(data: bytes) -> None:
    for form in ("raw", "auto"):
        done = run("--format", form, given=data)
        assert (done.exit_code, bool(done.stdout)) in ((0, True), (1, False)), done.output
        assert done.output.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["00", "--file", "x"], "DATA and --file exclude each other"),
        (["xyz", "--format", "hex"], "the input must be hex"),
        (["?", "--format", "base64"], "the input must be base64"),
        (["00", "--format", "raw"], "--format must be hex or base64 for DATA"),
    ],
)
def test_wrong_usage(arguments: list[str], text: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert text in done.stderr
