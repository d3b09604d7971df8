"""Constants of the wire formats.

Layout of an envelope, all integers big endian:

    0        4     5           6       7        8          header_len
    +--------+-----+-----------+-------+--------+----------+-----------------+
    | magic  | ver | header_len| flags | type   | (CRC-32C)| protobuf payload|
    +--------+-----+-----------+-------+--------+----------+-----------------+
      B90E43B4  00   08 or 0C                     4 bytes, when flag bit 0 is set

The CRC covers the payload. ``header_len`` may be larger than this version needs (room for extensions). With
the CRC flag it must be exactly 12: the server accepts no other value. The payload of type 0 is a ``Message``,
that of type 1 an ``Ack`` of ``protos/api.proto``.
"""

from __future__ import annotations

from typing import Final

MAGIC: Final = b"\xb9\x0e\x43\xb4"
VERSION: Final = 0
HEADER_LEN: Final = 8
HEADER_LEN_CRC: Final = 12
FLAG_CRC: Final = 0x01

#: A longer header key makes the server's log encoder panic (liftbridge commitlog/encoder.go: int16 length).
MAX_HEADER_KEY: Final = 32_767
#: The server's log stores the number of headers in 16 bits.
MAX_HEADERS: Final = 65_535
#: protobuf's own limit on a message, and Arrow's on a value with 32-bit offsets.
MAX_ENVELOPE: Final = 2**31 - 1

#: Prefixes of the internal subjects of NATS servers and gateways. The gateway's connection has permission to
#: publish there, so clients must not name such subjects.
INTERNAL_SUBJECTS: Final = ("$", "_lift.")

# protobuf wire types
VARINT: Final = 0
FIXED64: Final = 1
LEN: Final = 2
START_GROUP: Final = 3
END_GROUP: Final = 4
FIXED32: Final = 5
#: Maximum nesting depth of unknown groups, as in protobuf's own parsers.
MAX_GROUP_DEPTH: Final = 100

# Message
MSG_OFFSET: Final = 1
MSG_KEY: Final = 2
MSG_VALUE: Final = 3
MSG_TIMESTAMP: Final = 4
MSG_STREAM: Final = 5
MSG_PARTITION: Final = 6
MSG_SUBJECT: Final = 7
MSG_REPLY_SUBJECT: Final = 8
MSG_HEADERS: Final = 9
MSG_ACK_INBOX: Final = 10
MSG_CORRELATION_ID: Final = 11
MSG_ACK_POLICY: Final = 12

#: Headers that the server adds to every stored message; they repeat subject and replySubject.
SERVER_HEADERS: Final = ("subject", "reply")

# Message.HeadersEntry, and that of PublishRequest
ENTRY_KEY: Final = 1
ENTRY_VALUE: Final = 2

# Ack
ACK_STREAM: Final = 1
ACK_PARTITION_SUBJECT: Final = 2
ACK_MSG_SUBJECT: Final = 3
ACK_OFFSET: Final = 4
ACK_ACK_INBOX: Final = 5
ACK_CORRELATION_ID: Final = 6
ACK_ACK_POLICY: Final = 7
ACK_RECEPTION_TIMESTAMP: Final = 8
ACK_COMMIT_TIMESTAMP: Final = 9
ACK_ACK_ERROR: Final = 10

# PublishRequest
REQUEST_KEY: Final = 1
REQUEST_VALUE: Final = 2
REQUEST_STREAM: Final = 3
REQUEST_PARTITION: Final = 4
REQUEST_HEADERS: Final = 5
REQUEST_ACK_INBOX: Final = 6
REQUEST_CORRELATION_ID: Final = 7
REQUEST_ACK_POLICY: Final = 8
REQUEST_EXPECTED_OFFSET: Final = 9

# PublishResponse
RESPONSE_ACK: Final = 1
RESPONSE_ASYNC_ERROR: Final = 2
RESPONSE_CORRELATION_ID: Final = 3

# PublishAsyncError
ASYNC_ERROR_CODE: Final = 1
ASYNC_ERROR_MESSAGE: Final = 2
