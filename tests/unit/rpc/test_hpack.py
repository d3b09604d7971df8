"""HPACK that remembers, beside hpack's own, which forgets."""

from __future__ import annotations

from typing import Any

import pytest
from hpack import Decoder, Encoder, HeaderTuple, NeverIndexedHeaderTuple
from hpack.exceptions import HPACKError
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.rpc._client_side import ClientConnection
from liftenvelope.rpc._hpack import RememberingDecoder, RememberingEncoder
from tests.unit.rpc.test_connection import METHOD, Pair

fields = st.tuples(
    st.sampled_from([b":path", b"te", b"x-a", b"x-b", b"grpc-timeout"]),
    st.sampled_from([b"", b"1", b"v" * 40]),
)
blocks = st.lists(fields, max_size=4)
sizes = st.sampled_from([0, 40, 100, 200, 4096])
#: Blocks to send, some of them again and again, and new sizes of the table in between.
steps = st.lists(st.one_of(blocks, st.sampled_from([[(b"te", b"1"), (b"x-a", b"1")]]), sizes), max_size=30)


@given(steps)
def test_encoder_gives_what_hpacks_gives(steps: list[Any]) -> None:
    ours, theirs, decoder = RememberingEncoder(), Encoder(), Decoder()
    for step in steps:
        if isinstance(step, int):
            ours.header_table_size = step
            if step != theirs.header_table_size:
                theirs.header_table_size = step  # the same again would have it forget the first
        else:
            block = ours.encode(step)
            assert block == theirs.encode(step, huffman=False)
            assert [tuple(field) for field in decoder.decode(block, raw=True)] == step


@given(st.lists(st.tuples(blocks, blocks, blocks), max_size=15))
def test_fields_that_are_never_indexed(steps: list[tuple[list[Any], list[Any], list[Any]]]) -> None:
    encoder, decoder = RememberingEncoder(), Decoder()
    for first, secret, last in steps:
        hidden = [NeverIndexedHeaderTuple(*field) for field in secret]
        block = encoder.encode([*first, *hidden, *last])
        decoded: list[Any] = list(decoder.decode(block, raw=True))
        assert [tuple(field) for field in decoded] == [*first, *secret, *last]
        middle = decoded[len(first) : len(first) + len(secret)]
        assert not any(field.indexable for field in middle)


@pytest.mark.parametrize("length", [1, 126, 127, 128, 5_000])
def test_long_fields_that_are_never_indexed(length: int) -> None:
    secret = NeverIndexedHeaderTuple(b"n" * length, b"v" * length)
    block = RememberingEncoder().encode([(b"te", b"trailers"), secret])
    assert list(Decoder().decode(block, raw=True)) == [(b"te", b"trailers"), secret]


@given(steps)
def test_decoder_finds_what_hpacks_finds(steps: list[Any]) -> None:
    encoder, ours, theirs = Encoder(), RememberingDecoder(), Decoder()
    for step in steps:
        if isinstance(step, int):
            if step != encoder.header_table_size:
                encoder.header_table_size = step
        else:
            block = encoder.encode(step)
            found: Any = ours.decode(block, raw=True)
            assert found == theirs.decode(block, raw=True)
            assert all(isinstance(field, HeaderTuple) for field in found)
            found.append("of the caller's")


@given(
    st.lists(
        st.one_of(st.binary(max_size=6), st.sampled_from([b"\x82\xbe", b"@\x01a\x01b", b"\x20\xbe"])),
        max_size=12,
    )
)
def test_decoder_takes_whatever_hpacks_takes(blocks: list[bytes]) -> None:
    ours, theirs = RememberingDecoder(), Decoder()
    for block in blocks:
        try:
            expected: Any = theirs.decode(block, raw=True)
        except HPACKError as exc:
            with pytest.raises(type(exc)):
                ours.decode(block, raw=True)
            return
        assert ours.decode(block, raw=True) == expected


def test_what_is_remembered_has_an_end() -> None:
    encoder, decoder = RememberingEncoder(), RememberingDecoder()
    # Values that are never the same, but never indexed either: the tables do not change.
    for number in range(1_000):
        secret = NeverIndexedHeaderTuple(b"x", str(number).encode())
        assert decoder.decode(encoder.encode([(b":method", b"GET"), secret]), raw=True)[-1] == secret  # type: ignore[index]
    assert len(decoder._decoded) <= 64
    assert len(encoder._blocks) <= 64


def test_calls_of_one_method_are_short_whatever_their_time_limits() -> None:
    pair = Pair()
    lengths = []
    for timeout in (5.0, 4.999, 4.998, 3.5, 3.4):
        call_id = pair.client.start_call(METHOD, timeout=timeout)
        lengths.append(len(pair.client.data_to_send()))
        pair.client.cancel(call_id)
        pair.client.data_to_send()
    assert lengths[0] > 100
    assert all(length < 60 for length in lengths[1:])


def test_headers_arrive_whatever_was_remembered() -> None:
    pair = Pair(HEADER_TABLE_SIZE=150)
    for round_ in range(3):
        for method in ("/a/b", "/a/c"):
            for metadata in ([], [("x-a", f"{round_}")], [("x-a", "same")]):
                call_id = pair.client.start_call(method, timeout=1 + round_, metadata=metadata)
                pair.exchange()
                headers = pair.headers[call_id]
                assert headers[":path"] == method
                assert headers["grpc-timeout"] == f"{1 + round_}000000u"
                assert {name: headers[name] for name in headers if name == "x-a"} == dict(metadata)


def test_headers_of_many_methods_are_not_all_kept() -> None:
    client = ClientConnection("server.test")
    for number in range(300):
        client.cancel(client.start_call(f"/a/{number}"))
    assert len(client._fixed_headers) <= 100
