"""The exception tree: what is what, what can be retried, and that all of it can be pickled."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from liftenvelope import errors
from liftenvelope._checks import about
from liftenvelope.client._publish_summary import PublishSummary
from liftenvelope.envelope import Ack, new_message, unmarshal_message
from liftenvelope.errors import (
    AckTimeoutError,
    EnvelopeError,
    IncorrectOffsetError,
    LiftEnvelopeError,
    MissingExtraError,
    OffsetOutOfRangeError,
    PublishError,
    ServerError,
    TransportError,
    UsageError,
    UsageTypeError,
)
from liftenvelope.rpc.status import CallNotProcessedError, RpcError, StatusCode

SUMMARY = PublishSummary(3, {1: TransportError("lost", 1, True)}, {0: (4, 6)})
CLASSES: list[type[LiftEnvelopeError]] = [
    kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, LiftEnvelopeError)
]


def example(kind: type[LiftEnvelopeError]) -> LiftEnvelopeError:
    """An error of each class, every attribute set to something that is no default."""
    if issubclass(kind, PublishError):
        return kind(2, "said so", Ack(stream="s", error=2))
    if issubclass(kind, ServerError):
        return kind(77, "said so")
    if issubclass(kind, EnvelopeError):
        return kind("broken", 17)
    if issubclass(kind, AckTimeoutError):
        return kind("no ack", "id-1", False)
    if issubclass(kind, TransportError):
        return kind("closed", 3, True)
    if issubclass(kind, MissingExtraError):
        return kind("run pip install", name="h2")
    if issubclass(kind, OffsetOutOfRangeError):
        return kind("it lost messages", "foo", 3, 9, 4)
    return kind("said so")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
class TestEvery:
    def test_in_the_tree(self, kind: type[LiftEnvelopeError]) -> None:
        assert issubclass(kind, LiftEnvelopeError)
        assert kind.__name__.endswith("Error")
        assert kind.__name__ in errors.__all__
        assert kind.__doc__

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_pickles_with_its_attributes(self, kind: type[LiftEnvelopeError], protocol: int) -> None:
        error = example(kind)
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is kind
        assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
        assert again.retriable is error.retriable

    def test_copies(self, kind: type[LiftEnvelopeError]) -> None:
        error = example(kind)
        again = copy.copy(error)
        assert (type(again), str(again), vars(again)) == (kind, str(error), vars(error))

    def test_copies_deeply(self, kind: type[LiftEnvelopeError]) -> None:
        error = example(kind)
        again = copy.deepcopy(error)
        assert (type(again), str(again), again.args, vars(again)) == (
            kind,
            str(error),
            error.args,
            vars(error),
        )

    def test_keeps_what_was_put_on_it(self, kind: type[LiftEnvelopeError]) -> None:
        error = example(kind)
        error.add_note("while reading")
        error.summary = SUMMARY
        again = pickle.loads(pickle.dumps(error))
        assert (again.__notes__, str(again.summary), again.summary.offsets) == (
            ["while reading"],
            "3 stored, 1 failed",
            {0: (4, 6)},
        )


def test_no_exception_stands_outside_of_the_tree() -> None:
    exported = [getattr(errors, name) for name in errors.__all__]
    assert [kind for kind in exported if inspect.isclass(kind) and kind not in CLASSES] == []


class TestBases:
    @pytest.mark.parametrize(
        ("kind", "base"),
        [
            (UsageError, ValueError),
            (UsageTypeError, TypeError),
            (UsageTypeError, UsageError),
            (MissingExtraError, ImportError),
            (EnvelopeError, ValueError),
            (TransportError, ConnectionError),
            (AckTimeoutError, TimeoutError),
            (IncorrectOffsetError, PublishError),
            (PublishError, ServerError),
            (errors.CallTimeoutError, TimeoutError),
            (errors.SubscriptionLostError, TransportError),
            (errors.NoSuchStreamError, ServerError),
            (errors.FencedError, errors.GroupError),
        ],
    )
    def test_also_the_standard_ones(self, kind: type[Exception], base: type[Exception]) -> None:
        assert issubclass(kind, base)

    def test_what_may_succeed_again(self) -> None:
        assert {kind for kind in CLASSES if kind.retriable} == {
            TransportError,
            errors.ServerProtocolError,
            AckTimeoutError,
            errors.CallTimeoutError,
            errors.CursorsUnavailableError,
            errors.NoJetStreamError,
            errors.NotLeaderError,
            errors.SubscriptionLostError,
        }


class TestAttributes:
    def test_envelope_error(self) -> None:
        assert (str(EnvelopeError("broken")), EnvelopeError("broken").offset) == ("broken", None)
        assert (str(EnvelopeError("broken", 0)), EnvelopeError("broken", 0).offset) == (
            "broken (at byte 0)",
            0,
        )

    def test_transport_error_is_no_system_error(self) -> None:
        error = TransportError("closed", 3)
        assert (str(error), error.published, error.args) == ("closed", 3, ("closed", 3, False))
        assert (error.errno, error.strerror, error.filename) == (None, None, None)
        assert (TransportError("closed").published, TransportError("closed").sent) == (0, False)
        assert TransportError("closed", sent=True).sent

    def test_timeout_is_no_system_error(self) -> None:
        error = AckTimeoutError("no ack", "id-1", False)
        assert (str(error), error.correlation_id, error.sent) == ("no ack", "id-1", False)
        assert error.args == ("no ack", "id-1", False)
        assert (error.errno, error.strerror, error.filename) == (None, None, None)
        assert (AckTimeoutError("no ack").correlation_id, AckTimeoutError("no ack").sent) == ("", True)

    def test_server_error_keeps_an_unknown_code(self) -> None:
        error = ServerError(77, "said so")
        assert (error.code, error.description, str(error)) == (77, "said so", "said so (code 77)")

    def test_publish_error_carries_the_ack(self) -> None:
        ack = Ack(stream="s", correlation_id="c", error=2)
        error = errors.publish_error(ack)
        assert type(error) is IncorrectOffsetError
        assert (error.code, error.ack) == (2, ack)
        assert PublishError(1, "said so").ack is None

    def test_offsets_that_are_gone(self) -> None:
        error = OffsetOutOfRangeError("it lost messages", "foo", 3, 9, 4)
        assert str(error) == "it lost messages"
        assert (error.stream, error.partition, error.wanted, error.newest) == ("foo", 3, 9, 4)

    def test_call_timeout_is_no_system_error(self) -> None:
        error = errors.CallTimeoutError("late")
        assert (str(error), error.args, error.errno) == ("late", ("late",), None)

    @pytest.mark.parametrize("code", [StatusCode.NOT_FOUND, 77])
    def test_ends_of_calls(self, code: int) -> None:
        error = RpcError(code, "said so")
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
            assert (type(again), again.code, str(again)) == (RpcError, code, str(error))
        assert str(error) == ("NOT_FOUND: said so" if code == 5 else "status 77: said so")

    def test_calls_that_nobody_saw(self) -> None:
        error = CallNotProcessedError("refused")
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
            assert (type(again), str(again), again.args) == (CallNotProcessedError, "refused", error.args)

    def test_missing_extra_names_the_module(self) -> None:
        assert MissingExtraError("run pip install", name="h2").name == "h2"


def test_errors_of_the_codec_pickle() -> None:
    for data in (b"", new_message(b"x")[:-1], b"\x00" * 20):
        with pytest.raises(EnvelopeError) as caught:
            unmarshal_message(data)
        again = pickle.loads(pickle.dumps(caught.value))
        assert type(again) is type(caught.value)
        assert (again.offset, str(again)) == (caught.value.offset, str(caught.value))


def test_publish_error_pickles_with_its_ack() -> None:
    error = errors.publish_error(Ack(stream="s", error=99))
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.code, again.ack, str(again)) == (PublishError, 99, error.ack, str(error))


def test_names_of_arguments_survive_pickling() -> None:
    error = about(UsageError("tls_cert and tls_key belong together"), "tls_cert", "tls_key")
    assert pickle.loads(pickle.dumps(error)).arguments == ("tls_cert", "tls_key")
    assert UsageError("no argument").arguments == ()
