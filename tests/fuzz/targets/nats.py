"""Bytes of a NATS server, made of chunks: a byte for the form, then `subject|reply|headers|payload`."""

from __future__ import annotations

from tests.fuzz.target import option

__all__ = ["SIDS", "WORDS", "chunk", "frame"]

#: The subscriptions that messages are for: by the two highest bits of the form.
SIDS = (7, 3, 1, 0)
OWN, WRONG, LINE, RAW = 0, 5, 6, 7
WORDS = (
    b"\r\n",
    b"|",
    b".",
    b" ",
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"A: 1\r\n",
    b"$JS.ACK.s.c.1.2.2.17.0",
    b"$JS.ACK.hub.acc.s.c.1.3.3.17.0",
    b"MSG a 7 1\r\nx\r\n",
    b"PING\r\n",
    b"-ERR 'x'",
    b"INFO {}",
    b"\xff",
    b"\xc3\xa9",
)


def frame(chunk: bytes) -> bytes:
    """The message that a chunk stands for, with sizes that are right unless the form says otherwise."""
    form, text = option(chunk, 0), chunk[1:]
    if form & 7 == RAW:
        return text
    if form & 7 == LINE:
        return text + b"\r\n"
    subject, reply, headers, payload = [*text.split(b"|", 3), b"", b"", b""][:4]
    words = [subject, b"%d" % SIDS[form >> 6], *([reply] if reply else [])]
    size = len(headers) + len(payload) + ((form >> 3 & 7) - 3 if form & 7 == WRONG else 0)
    line = b" ".join(words)
    if headers:
        return b"HMSG %b %d %d\r\n%b%b\r\n" % (line, len(headers), size, headers, payload)
    return b"MSG %b %d\r\n%b\r\n" % (line, size, payload)


def chunk(
    subject: bytes, reply: bytes = b"", headers: bytes = b"", payload: bytes = b"", form: int = OWN
) -> bytes:
    """The chunk of a message."""
    return bytes((form,)) + b"|".join((subject, reply, headers, payload))
