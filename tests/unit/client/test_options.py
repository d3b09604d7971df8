"""Options: checked when they are given, by errors that name them."""

from __future__ import annotations

import asyncio
import ssl
import warnings
from typing import Any

import pytest

import liftenvelope
from liftenvelope.bulk import Access
from liftenvelope.client._events import (
    CheckpointFailed,
    LiftEnvelopeWarning,
    MetadataRefreshed,
    StoppedAtHighWatermark,
    warn,
)
from liftenvelope.client.options import Options
from liftenvelope.errors import UsageError, UsageTypeError

ADDRESS = "127.0.0.1:9292"
SECONDS = ("timeout", "ack_wait", "connect_timeout", "keep_alive_time", "metadata_max_age", "ping_interval")
COUNTS = ("max_conns_per_broker", "max_message_bytes", "max_request_bytes", "prefetch_bytes")


def options(**given: Any) -> Options:
    return Options(**{"addresses": ADDRESS, **given})


class TestAddresses:
    @pytest.mark.parametrize(
        ("given", "seeds"),
        [
            ("a:1", ("a:1",)),
            (["a:1", "b:2"], ("a:1", "b:2")),
            (("a:1", "b:2", "a:1"), ("a:1", "b:2")),
            ((address for address in ["[::1]:9292"]), ("[::1]:9292",)),
            ("a:0001", ("a:1",)),
        ],
    )
    def test_as_they_come(self, given: Any, seeds: tuple[str, ...]) -> None:
        assert options(addresses=given).seeds == seeds

    @pytest.mark.parametrize(
        "given",
        [
            "",
            [],
            "localhost",
            "a:0",
            "a:65536",
            "::1:9292",
            "a:1,b:2",
            ["a:1", ""],
            None,
            5,
            [5],
            [b"a:1"],
            b"a:1",
        ],
    )
    def test_invalid_addresses_are_refused(self, given: Any) -> None:
        with pytest.raises(UsageError, match=r"address"):
            options(addresses=given)

    def test_are_mapped(self) -> None:
        made = options(address_map={"a:01": "b:02"})
        assert (made.reachable("a:1"), made.reachable("c:3")) == ("b:2", "c:3")

    @pytest.mark.parametrize("given", [{"a": "b:1"}, {"a:1": "b"}, {"a:1": None}, {5: "a:1"}, ["a:1"], "a:1"])
    def test_maps_that_are_none(self, given: Any) -> None:
        with pytest.raises(UsageError, match="address"):
            options(address_map=given)


class TestNumbers:
    @pytest.mark.parametrize("name", SECONDS)
    @pytest.mark.parametrize("value", [-1, -0.001, float("nan"), float("inf"), float("-inf"), 10**400])
    def test_seconds_out_of_range(self, name: str, value: float) -> None:
        with pytest.raises(UsageError, match=rf"^{name} must .* got "):
            options(**{name: value})

    @pytest.mark.parametrize("name", [*SECONDS, "resubscribe_wait"])
    @pytest.mark.parametrize("value", ["1", True, [1], 1j])
    def test_seconds_of_another_type(self, name: str, value: Any) -> None:
        with pytest.raises(UsageTypeError, match=name):
            options(**{name: value})

    @pytest.mark.parametrize("name", SECONDS)
    def test_no_seconds_at_all(self, name: str) -> None:
        with pytest.raises(UsageError, match=rf"^{name} must .* got 0"):
            options(**{name: 0})

    def test_what_may_be_nothing(self) -> None:
        assert options(resubscribe_wait=0).resubscribe_wait == 0.0
        assert options(ping_interval=None).ping_interval is None
        with pytest.raises(UsageError, match=r"^resubscribe_wait must .* got -1"):
            options(resubscribe_wait=-1)

    def test_seconds_become_floats(self) -> None:
        assert isinstance(options(timeout=3).timeout, float)

    @pytest.mark.parametrize("name", COUNTS)
    @pytest.mark.parametrize("value", [0, -1])
    def test_counts_out_of_range(self, name: str, value: int) -> None:
        with pytest.raises(UsageError, match=rf"^{name} must .* got {value}"):
            options(**{name: value})

    @pytest.mark.parametrize("name", COUNTS)
    @pytest.mark.parametrize("value", [1.0, "1", True, None])
    def test_counts_of_another_type(self, name: str, value: Any) -> None:
        with pytest.raises(UsageTypeError, match=name):
            options(**{name: value})

    def test_the_window_has_to_fit_into_http2(self) -> None:
        assert options(prefetch_bytes=2**31 - 1).prefetch_bytes == 2**31 - 1
        with pytest.raises(UsageError, match=r"^prefetch_bytes must .* got 2147483648"):
            options(prefetch_bytes=2**31)

    def test_the_largest_message_has_to_fit_into_grpc(self) -> None:
        assert options(max_message_bytes=2**32 - 1).max_message_bytes == 2**32 - 1
        with pytest.raises(
            UsageError, match=r"^max_message_bytes must be at most 4294967295, got 4294967296"
        ):
            options(max_message_bytes=2**32)


class TestOthers:
    def test_tls(self) -> None:
        context = ssl.create_default_context()
        assert options(tls=context).context is context
        assert isinstance(options(tls=True).context, ssl.SSLContext)
        assert options(tls=False).context is options().context is None

    @pytest.mark.parametrize("value", ["yes", 1, 0, "cert.pem"])
    def test_tls_of_another_type(self, value: Any) -> None:
        with pytest.raises(UsageTypeError, match="tls"):
            options(tls=value)

    @pytest.mark.parametrize("value", ["fastest", "", "Random", None, 5])
    def test_selection(self, value: Any) -> None:
        with pytest.raises(UsageError, match=r"^broker_selection must .* got "):
            options(broker_selection=value)

    def test_selections_that_there_are(self) -> None:
        for value in ("random", "latency", "workload", lambda brokers: brokers[0]):
            assert options(broker_selection=value).broker_selection is value

    def test_the_handler(self, caplog: pytest.LogCaptureFixture) -> None:
        seen: list[Any] = []
        event = CheckpointFailed("c", "orders", 0, 7, ConnectionError("no server"))
        options(on_event=seen.append).notify(event)
        assert seen == [event]
        assert caplog.messages == ["orders[0]: cursor c could not be set to 7: no server"]
        caplog.clear()
        with pytest.warns(LiftEnvelopeWarning, match="could not be set to 7: no server"):
            options().notify(event)
        assert caplog.messages == []  # the warning says it already
        with pytest.raises(UsageTypeError, match="on_event"):
            options(on_event=[])

    def test_coroutine_function_as_event_handler_is_refused(self) -> None:
        async def handler(event: object) -> None:
            raise AssertionError(event)

        # It would be called and never awaited.
        with pytest.raises(UsageTypeError, match="plain function"):
            options(on_event=handler)

    def test_cannot_be_changed(self) -> None:
        with pytest.raises(AttributeError):
            options().timeout = 5.0  # type: ignore[misc]

    def test_are_checked_without_an_event_loop(self) -> None:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        with pytest.raises(UsageError, match=r"^timeout must .* got -1"):
            liftenvelope.connect(ADDRESS, timeout=-1)
        assert isinstance(liftenvelope.connect(ADDRESS), liftenvelope.Client)


class TestWarnings:
    def test_stop_at_the_high_watermark_warns(self) -> None:
        with pytest.warns(LiftEnvelopeWarning, match=r"foo\[0\].* high watermark 3; 2 stored"):
            warn(StoppedAtHighWatermark("foo", 0, 3, 5))

    def test_usual_events_do_not_warn(self) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn(MetadataRefreshed("a:1", ()))
        assert caught == []


class TestTlsServerName:
    TLS = ssl.create_default_context()

    @pytest.mark.parametrize(
        "given", ["broker.example.org", "127.0.0.1", "::1", {"a:1": "x.example.org", "[::1]:2": "y"}, {}]
    )
    def test_taken(self, given: Any) -> None:
        assert options(tls=self.TLS, tls_server_name=given).tls_server_name == given

    @pytest.mark.parametrize(
        "given", ["", ".a", "a b", "a/b", "a\0b", "\ud800", "x" * 64, {"a": "b"}, {"a:1": ""}, {"a:0": "b"}]
    )
    def test_refused(self, given: Any) -> None:
        with pytest.raises(UsageError):
            options(tls=self.TLS, tls_server_name=given)
        with pytest.raises(UsageError):
            Access(tls=self.TLS, tls_server_name=given)

    @pytest.mark.parametrize("given", [5, b"a", ["a"], {"a:1": None}, {5: "a"}])
    def test_tls_server_name_of_another_type_is_refused(self, given: Any) -> None:
        with pytest.raises(UsageTypeError, match="tls_server_name"):
            options(tls=self.TLS, tls_server_name=given)

    @pytest.mark.parametrize("tls", [None, False])
    def test_without_tls(self, tls: Any) -> None:
        with pytest.raises(UsageError, match="tls_server_name must be None without tls, got 'a'"):
            options(tls=tls, tls_server_name="a")
        with pytest.raises(UsageError, match="tls_server_name must be None without tls, got 'a'"):
            Access(tls=tls, tls_server_name="a")
