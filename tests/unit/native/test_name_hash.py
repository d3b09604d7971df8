"""Hash tables of names that peers choose: the hash is keyed, so that names can't be made to share a cell."""

from __future__ import annotations

import itertools
import os
import struct
import subprocess
import sys

import pytest

from liftenvelope._native import _fastbulk
from liftenvelope.errors import UsageError

#: Either block of a pair takes FNV-1a from the state before it to the same low 36 bits: 2**14 names that
#: share one cell of every table of up to 65,536 cells that takes bits 20 and up of an FNV-1a hash.
PAIRS = (
    ("17iuaq", "gxjeq9"),
    ("m9n2vx", "r4a4bo"),
    ("jwt2gx", "3momok"),
    ("3cbxn2", "zrf0so"),
    ("b2e5ah", "vbpoya"),
    ("le6xgv", "fjl2bx"),
    ("ohyn0w", "eeab2f"),
    ("it1347", "b8nldx"),
    ("jkkpwk", "4wfw3q"),
    ("r0tki0", "jfewfh"),
    ("jq3nd4", "k61h6r"),
    ("fod0u4", "9bilzz"),
    ("rbyqw8", "4l8869"),
    ("av7ymm", "6d9m3n"),
)
SIZES = (*range(40), 63, 64, 65, 1000)


def colliding_names(count: int) -> list[bytes]:
    names = itertools.islice(itertools.product(*PAIRS), count)
    return ["".join(name).encode() for name in names]


def fnv_1a(name: bytes) -> int:
    mix = 0xCBF29CE484222325
    for byte in name:
        mix = (mix ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return mix


def test_names_collide_under_an_unkeyed_hash() -> None:
    cells = {fnv_1a(name) >> 20 & 0xFFFF for name in colliding_names(16_384)}
    assert len(cells) == 1


@pytest.mark.parametrize("count", [8_192, 16_384])
def test_chosen_names_spread_over_the_table(count: int) -> None:
    cells = {_fastbulk._name_hash(name) & (4 * count - 1) for name in colliding_names(count)}
    # n random names are expected to take 0.885 n of 4n cells, with a deviation below 0.3 sqrt(n).
    assert len(cells) > 0.8 * count


@pytest.mark.parametrize("count", [8_192, 16_384])
def test_chosen_header_names_are_all_read(count: int) -> None:
    names = colliding_names(count)
    block = b"NATS/1.0\r\n" + b"".join(name + b": 1\r\n" for name in names) + b"\r\n"
    ack = b"$JS.ACK.S.c.1.1.1.1700000000000000000.0"
    data = b"HMSG s 7 %b %d %d\r\n%b\r\n" % (ack, len(block), len(block), block)
    rows = _fastbulk.NatsRows(("headers",), 0, 10, 2**30, 2**30, bytearray)
    rows.follow(7, 0, -1)
    assert rows.feed(data, 0, len(data)) == (_fastbulk.MORE, len(data))
    columns = rows.take()[4]
    assert struct.unpack_from("=2i", columns["header_offsets"]) == (0, count)


def test_processes_have_keys_of_their_own() -> None:
    code = "from liftenvelope._native import _fastbulk; print(_fastbulk._name_hash(b'name'))"
    others = [subprocess.check_output([sys.executable, "-c", code], text=True).strip() for _ in range(2)]
    assert len({*others, str(_fastbulk._name_hash(b"name"))}) == 3


def test_hash_is_siphash_1_3() -> None:
    # CPython hashes bytes by SipHash-1-3; its key is 0 with PYTHONHASHSEED=0.
    assert sys.hash_info.algorithm == "siphash13"
    code = f"print(*(hash(bytes(i % 251 for i in range(n))) for n in {SIZES}))"
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    answer = subprocess.check_output([sys.executable, "-c", code], env=env, text=True)
    expected = [int(number) % 2**64 for number in answer.split()]
    ours = [_fastbulk._name_hash(bytes(i % 251 for i in range(n)), bytes(16)) for n in SIZES]
    assert ours[1:] == expected[1:]  # CPython's hash of b"" is 0


def test_key_must_have_16_bytes() -> None:
    with pytest.raises(UsageError, match="key must have 16 bytes, got 3"):
        _fastbulk._name_hash(b"name", b"abc")
