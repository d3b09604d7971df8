"""Parts of requests to JetStream: names, prefixes, errors by number, headers, and reading acks."""

from __future__ import annotations

import json
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope import errors
from liftenvelope._native import jet
from liftenvelope.errors import (
    JetStreamError,
    NoJetStreamError,
    ServerProtocolError,
    UsageError,
    jetstream_error,
)
from liftenvelope.jetstream.api import api_prefix, encode_payload, read_answer
from liftenvelope.jetstream.names import (
    check_consumer_name,
    check_domain,
    check_filter,
    check_group,
    check_prefix,
    check_stream_name,
)
from liftenvelope.jetstream.publish_frames import (
    HeaderFields,
    PubAck,
    header_block,
    header_pairs,
    option_headers,
    read_ack,
    status_error,
)
from liftenvelope.nats.headers import Headers, headers_of

#: As captured from nats-server 2.15.1.
STREAM_NOT_FOUND = (
    b'{"type":"io.nats.jetstream.api.v1.stream_info_response","error":{"code":404,"err_code":10059,'
    b'"description":"stream not found"},"total":0,"offset":0,"limit":0}'
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["code", "err_code", "description", "seq", "stream"]), inner)
    ),
    max_leaves=8,
)


class TestErrors:
    @pytest.mark.parametrize(
        ("err_code", "kind"),
        [
            (10059, errors.StreamNotFoundError),
            (10058, errors.StreamNameInUseError),
            (10014, errors.ConsumerNotFoundError),
            (10149, errors.ConsumerNotFoundError),
            (10148, errors.ConsumerExistsError),
            (10037, errors.MessageNotFoundError),
            (10071, errors.WrongLastSequenceError),
            (10164, errors.WrongLastSequenceError),
            (10039, errors.NoJetStreamError),
            (10077, errors.StreamStoreFailedError),
            (10003, errors.BadRequestError),
            (99999, errors.JetStreamError),
        ],
    )
    def test_error_type_follows_the_number(self, err_code: int, kind: type[JetStreamError]) -> None:
        error = jetstream_error(400, err_code, "said so")
        assert type(error) is kind
        assert (error.code, error.err_code, error.description) == (400, err_code, "said so")
        assert str(error) == f"said so (code 400, error {err_code})"

    def test_error_type_without_a_number(self) -> None:
        assert type(jetstream_error(503, 0, "")) is NoJetStreamError
        assert str(jetstream_error(400, 0, "")) == "the server gave no reason (code 400)"
        # A store that fails is no JetStream that is off, though the server says 503 to both.
        assert not isinstance(jetstream_error(503, 10077, "x"), NoJetStreamError)

    def test_answers(self) -> None:
        assert read_answer(b'{"a":1}', "X") == {"a": 1}
        with pytest.raises(errors.StreamNotFoundError):
            read_answer(STREAM_NOT_FOUND, "X")
        for data in (b"", b"{", b"[]", b"\xff"):
            with pytest.raises(ServerProtocolError, match="'X'"):
                read_answer(data, "X")


class TestNames:
    @pytest.mark.parametrize("check", [check_stream_name, check_consumer_name, check_domain])
    def test_fine(self, check: object) -> None:
        for name in ("a", "A-b_C=9", "ä", "x" * 255):
            assert check(name) == name  # type: ignore[operator]

    @pytest.mark.parametrize("group", ["", "x" * 17, "a.b", "a b", "a*", "ä"])
    def test_groups(self, group: str) -> None:
        with pytest.raises(UsageError, match="priority group"):
            check_group(group)

    @pytest.mark.parametrize("subject", ["a", "a.b", "*", ">", "a.*.b", "a.>"])
    def test_subjects(self, subject: str) -> None:
        assert check_filter(subject) == subject

    def test_prefixes(self) -> None:
        assert api_prefix(None, None) == "$JS.API"
        assert api_prefix("hub", None) == "$JS.hub.API"
        assert api_prefix(None, "my.js.") == "my.js"
        with pytest.raises(UsageError, match="exclude each other"):
            api_prefix("hub", "x")
        for domain in ("", "a.b", "*"):
            with pytest.raises(UsageError, match="domain"):
                api_prefix(domain, None)
        for prefix in ("", ".", "a..b", "a.*", "a.>", "a b"):
            with pytest.raises(UsageError):
                check_prefix(prefix)

    def test_payloads(self) -> None:
        assert encode_payload(None) == b""
        assert encode_payload(b"x") == b"x"
        assert encode_payload({"a": "ä"}) == '{"a":"ä"}'.encode()


class TestAcks:
    @given(
        st.text(min_size=1),
        st.integers(0, 2**64 - 1),
        st.none() | st.text(min_size=1),
        st.booleans(),
        st.booleans(),
        st.integers(1, 3),
    )
    def test_read(
        self, stream: str, sequence: int, domain: str | None, duplicate: bool, domain_last: bool, times: int
    ) -> None:
        answer: dict[str, object] = {"stream": stream, "seq": sequence}
        if domain is not None:
            answer = {**answer, "domain": domain} if domain_last else {"domain": domain, **answer}
        if duplicate:
            answer["duplicate"] = True
        data = json.dumps(answer, separators=(",", ":")).encode()
        read = jet.AckReader(PubAck, read_ack)
        for _ in range(times):
            assert read(data) == PubAck(stream, sequence, domain, duplicate)

    @given(st.binary(max_size=40) | st.sampled_from([b'{"stream":"S","seq":', b'{"stream":"S","seq":5']))
    def test_anything(self, data: bytes) -> None:
        read = jet.AckReader(PubAck, read_ack)
        assert read(b'{"stream":"S","seq":5}') == PubAck("S", 5)
        outcome = read(data)
        assert type(outcome) is JetStreamError

    @given(
        _JSON
        | st.fixed_dictionaries({"error": _JSON})
        | st.fixed_dictionaries({"seq": _JSON, "stream": _JSON})
    )
    def test_any_json(self, value: object) -> None:
        """Nothing that comes leaves a publish without an end."""
        assert isinstance(read_ack(json.dumps(value).encode()), PubAck | JetStreamError)

    @pytest.mark.parametrize(
        "data",
        [
            b'{"stream":"S","seq":1e999}',
            b'{"error":{"code":-1e999}}',
            b"[" * 100_000,
            b'{"stream":"S","seq":' + b"9" * 5_000 + b"}",
        ],
    )
    def test_hostile(self, data: bytes) -> None:
        assert "invalid ack" in str(read_ack(data))

    def test_the_rest(self) -> None:
        """The acks and errors are those of nats-server 2.15.1, but for the values."""
        read = jet.AckReader(PubAck, read_ack)
        ack = read(b'{"stream":"S","seq":7,"val":"12","batch":"b","count":3}')
        assert ack == PubAck("S", 7, None, False, "12", "b", 3)
        assert read(b'{"stream":"S","seq":10,"duplicate": true}') == PubAck("S", 10, None, True)
        ack = read(b'{"stream":"S","seq":1,"duplicate": true,"batch":"c3","count":1}')
        assert ack == PubAck("S", 1, None, True, None, "c3", 1)
        for err_code, text, kind in (
            (10071, b"wrong last sequence: 10", errors.WrongLastSequenceError),
            (10060, b"expected stream does not match", errors.WrongStreamError),
        ):
            told = b'{"code":400,"err_code":%d,"description":"%b"}' % (err_code, text)
            assert type(read(b'{"error":%b,"stream":"S","seq":0}' % told)) is kind

    @pytest.mark.parametrize(
        ("block", "headers", "said"),
        [
            (b"NATS/1.0 503\r\n\r\n", {"Status": "503"}, "no stream records the subject 'a'"),
            (b"NATS/1.0 503\r\nNats-Subject: a\r\n\r\n", {"Status": "503", "Description": "x"}, "records"),
            (
                b"NATS/1.0 409 Not now\r\n\r\n",
                {"Status": "409", "Description": "Not now"},
                "Not now .code 409",
            ),
            (b"NATS/1.0 409\r\n\r\n", {"Status": "409"}, "status '409' .code 409"),
            (b"NATS/1.0\r\nA: b\r\n\r\n", {"A": "b"}, "status '' .code 500"),
            ("NATS/1.0 \u0663\r\n\r\n".encode(), {"Status": "\u0663"}, "code 500"),
            (b"\xff", {}, "status '' .code 500"),
        ],
    )
    def test_statuses(self, block: bytes, headers: dict[str, str], said: str) -> None:
        """Headers parsed by nats-py and unparsed header blocks give the same error."""
        for given_headers in (block, headers):
            error = status_error(given_headers, "a")
            assert re.search(said, str(error))


class TestHeaders:
    def test_block(self) -> None:
        assert header_block([("A", "b"), ("C", "")]) == b"NATS/1.0\r\nA: b\r\nC: \r\n\r\n"

    @given(st.lists(st.tuples(st.text("abcXYZ-_", min_size=1, max_size=2), st.text("abc :;ä")), max_size=6))
    def test_there_and_back(self, pairs: list[tuple[str, str]]) -> None:
        headers = headers_of(header_block(pairs))
        assert headers.pairs == tuple((name, value.strip()) for name, value in pairs)
        assert headers == {name: value.strip() for name, value in pairs}
        for name in {name for name, _ in pairs}:
            assert headers.get_all(name) == tuple(value.strip() for each, value in pairs if each == name)

    def test_pairs(self) -> None:
        """A header given by its name goes before an option that asks for it."""
        headers: HeaderFields = {"A": ["b", "c"], "B": "d", "C": (), "Nats-Msg-Id": "mine"}
        options = {"Nats-Msg-Id": "option", "Nats-TTL": "1s"}
        wanted = [("Nats-TTL", "1s"), ("A", "b"), ("A", "c"), ("B", "d"), ("Nats-Msg-Id", "mine")]
        assert header_pairs(headers, options) == wanted
        assert header_pairs(Headers(wanted), options) == wanted
        assert header_pairs({}, {}) == []
        assert header_block([]) == b""

    def test_headers(self) -> None:
        headers = Headers([("A", "1"), ("a", "2"), ("A", "3")])
        assert (len(headers), list(headers), "A" in headers, "B" in headers) == (2, ["A", "a"], True, False)
        assert (headers["A"], headers.get("B"), headers.get_all("B")) == ("3", None, ())
        assert headers == {"A": "3", "a": "2"} == dict(headers)
        assert Headers() == {}
        assert not Headers()
        again = pickle.loads(pickle.dumps(headers))
        assert (again, again.pairs) == (headers, headers.pairs)
        with pytest.raises(KeyError):
            headers["B"]

    @pytest.mark.parametrize("name", ["", "a b", "a:b", "ä", "a\r\nb", "\x00"])
    def test_names(self, name: str) -> None:
        with pytest.raises(UsageError, match="header name"):
            header_block([(name, "x")])

    def test_options(self) -> None:
        assert option_headers({"message_id": "a", "ttl": None}) == {"Nats-Msg-Id": "a"}
        assert option_headers({"ttl": 1.5}) == {"Nats-TTL": "1500000000ns"}
        assert option_headers({"ttl": "never"}) == {"Nats-TTL": "never"}
        assert option_headers({"expected_last_sequence": 0, "expected_stream": "S"}) == {
            "Nats-Expected-Last-Sequence": "0",
            "Nats-Expected-Stream": "S",
        }
        assert option_headers(
            {"expected_last_subject_sequence": 4, "expected_last_subject_filter": "a.*"}
        ) == {
            "Nats-Expected-Last-Subject-Sequence": "4",
            "Nats-Expected-Last-Subject-Sequence-Subject": "a.*",
        }
