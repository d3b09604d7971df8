"""The header and the checksum of an envelope; peek_type and is_envelope."""

from __future__ import annotations

import pytest

from liftenvelope.envelope import (
    Ack,
    Message,
    MessageType,
    is_envelope,
    new_message,
    peek_type,
    unmarshal_ack,
    unmarshal_message,
)
from liftenvelope.errors import (
    BadMagicError,
    ChecksumError,
    MalformedEnvelopeError,
    TruncatedEnvelopeError,
    UnsupportedVersionError,
    WrongTypeError,
)
from tests.twin import readable

HEAD = bytes.fromhex("b90e43b400080000")
ACK_HEAD = bytes.fromhex("b90e43b400080001")


def value_field(value: bytes) -> bytes:
    """A payload with a short value alone."""
    return bytes((0x1A, len(value))) + value


def sealed(payload: bytes) -> bytes:
    crc = readable.env.crc32c(payload)
    return bytes.fromhex("b90e43b4000c0100") + crc.to_bytes(4, "big") + payload


class TestHeader:
    def test_eight_bytes_are_an_empty_message(self) -> None:
        assert unmarshal_message(HEAD) == Message()
        assert unmarshal_ack(ACK_HEAD) == Ack()

    @pytest.mark.parametrize("size", range(8))
    def test_shorter(self, size: int) -> None:
        for read in (unmarshal_message, unmarshal_ack, peek_type):
            with pytest.raises(TruncatedEnvelopeError) as caught:
                read(HEAD[:size])
            assert caught.value.args == (f"an envelope has at least 8 bytes, not {size}", size)
        assert not is_envelope(HEAD[:size])

    @pytest.mark.parametrize("at", range(4))
    def test_magic(self, at: int) -> None:
        data = bytearray(HEAD)
        data[at] ^= 0x01
        with pytest.raises(BadMagicError) as caught:
            unmarshal_message(data)
        found = bytes(data[:4]).hex()
        assert caught.value.args == (f"not an envelope: it begins with {found}, not b90e43b4", 0)
        assert not is_envelope(data)

    @pytest.mark.parametrize("version", [1, 2, 128, 255])
    def test_version(self, version: int) -> None:
        data = HEAD[:4] + bytes((version,)) + HEAD[5:]
        with pytest.raises(UnsupportedVersionError) as caught:
            peek_type(data)
        assert caught.value.args == (f"envelope version {version} is not supported, only 0", 4)
        assert not is_envelope(data)

    @pytest.mark.parametrize("header_len", range(256))
    def test_header_length(self, header_len: int) -> None:
        """An envelope of 40 bytes is tested with header lengths that are too short, valid and too long."""
        data = HEAD[:5] + bytes((header_len, 0, 0)) + bytes(32)[: 40 - 8]
        if header_len < 8:
            with pytest.raises(MalformedEnvelopeError) as caught:
                unmarshal_message(data)
            said = f"the header says that it is {header_len} bytes long; the least is 8"
            assert caught.value.args == (said, 5)
        elif header_len > 40:
            with pytest.raises(TruncatedEnvelopeError) as short:
                unmarshal_message(data)
            assert short.value.args == (
                f"the header says that it is {header_len} bytes long, of 40 in all",
                5,
            )
        elif header_len == 40:
            assert unmarshal_message(data) == Message()
        else:  # a payload of zeros
            with pytest.raises(MalformedEnvelopeError) as zeros:
                unmarshal_message(data)
            assert zeros.value.args == ("field number 0", header_len)
        assert is_envelope(data) is (8 <= header_len <= 40)

    @pytest.mark.parametrize("header_len", [8, 9, 12, 20, 255])
    def test_room_for_extensions(self, header_len: int) -> None:
        data = HEAD[:5] + bytes((header_len, 0, 0)) + b"\xff" * (header_len - 8) + value_field(b"hello")
        assert unmarshal_message(data) == Message(b"hello")

    @pytest.mark.parametrize("header_len", [8, 9, 11, 13, 20])
    def test_a_checksum_needs_twelve_bytes(self, header_len: int) -> None:
        data = HEAD[:5] + bytes((header_len, 1, 0)) + bytes(32)
        with pytest.raises(MalformedEnvelopeError) as caught:
            unmarshal_message(data)
        assert caught.value.args == (f"a header with a checksum is 12 bytes long, not {header_len}", 5)
        assert not is_envelope(data)

    @pytest.mark.parametrize("size", range(8, 12))
    def test_cut_checksum(self, size: int) -> None:
        with pytest.raises(TruncatedEnvelopeError) as caught:
            unmarshal_message(sealed(b"")[:size])
        assert caught.value.args == (f"the header says that it is 12 bytes long, of {size} in all", 5)

    @pytest.mark.parametrize("flags", [0x02, 0x80, 0xFE])
    def test_other_flags_mean_nothing(self, flags: int) -> None:
        assert unmarshal_message(HEAD[:6] + bytes((flags, 0)) + value_field(b"x")).value == b"x"

    def test_other_flags_beside_the_checksum(self) -> None:
        data = bytearray(sealed(value_field(b"x")))
        data[6] = 0xFF
        assert unmarshal_message(data).value == b"x"

    @pytest.mark.parametrize(
        ("found", "name"),
        [(1, "ACK"), (2, "REPLICATION_REQUEST"), (14, "PARTITION_NOTIFICATION"), (200, None)],
    )
    def test_type(self, found: int, name: str | None) -> None:
        data = HEAD[:7] + bytes((found,))
        with pytest.raises(WrongTypeError) as caught:
            unmarshal_message(data)
        said = f"expected an envelope of type PUBLISH, found {name or 'UNRECOGNIZED_200'} ({found})"
        assert caught.value.args == (said, 7)
        assert is_envelope(data)
        assert peek_type(data) == found
        assert type(peek_type(data)) is MessageType
        assert peek_type(data).name == (name or "UNRECOGNIZED_200")

    def test_type_of_an_ack(self) -> None:
        with pytest.raises(WrongTypeError, match=r"^expected an envelope of type ACK, found PUBLISH"):
            unmarshal_ack(HEAD)

    def test_no_envelope_at_all(self) -> None:
        assert not is_envelope(b"")
        assert not is_envelope(b"hello, world")
        with pytest.raises(BadMagicError, match=r"^not an envelope: it begins with 68656c6c, not b90e43b4"):
            unmarshal_message(b"hello, world")


class TestChecksum:
    def test_right(self) -> None:
        assert unmarshal_message(sealed(value_field(b"hello"))).value == b"hello"

    def test_every_wrong_byte_is_seen(self) -> None:
        data = new_message(b"hello", key=b"k", crc=True)
        for at in range(8, len(data)):
            for mask in (0x01, 0x80, 0xFF):
                broken = bytearray(data)
                broken[at] ^= mask
                with pytest.raises(ChecksumError) as caught:
                    unmarshal_message(broken)
                assert caught.value.offset == 8

    def test_every_cut_is_seen(self) -> None:
        data = new_message(b"hello", key=b"k", crc=True)
        for size in range(12, len(data)):
            with pytest.raises(ChecksumError):
                unmarshal_message(data[:size])

    def test_text_says_both(self) -> None:
        data = bytes.fromhex("b90e43b4000c0100" + "00000001")
        with pytest.raises(ChecksumError) as caught:
            unmarshal_message(data)
        assert caught.value.args == ("the header's CRC-32C is 00000001, the payload's 00000000", 8)

    @pytest.mark.parametrize(
        ("data", "crc"),
        [
            (bytes(32), 0x8A91_36AA),
            (b"\xff" * 32, 0x62A8_AB43),
            (bytes(range(32)), 0x46DD_794E),
            (bytes(range(31, -1, -1)), 0x113F_DB5C),
            (
                bytes.fromhex(
                    "01c00000000000000000000000000000140000000000040000000014000000182800000000000000"
                    "0200000000000000"
                ),
                0xD996_3A56,
            ),
            (b"123456789", 0xE306_9283),
            (b"", 0),
        ],
    )
    def test_vectors_of_rfc_3720(self, data: bytes, crc: int) -> None:
        assert readable.env.crc32c(data) == crc
