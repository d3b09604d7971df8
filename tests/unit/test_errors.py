"""The exception tree: what is what, what can be retried, and that all of it can be pickled."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from liftenvelope import errors
from liftenvelope.envelope import Ack, new_message, unmarshal_message
from liftenvelope.errors import (
    AckTimeoutError,
    EnvelopeError,
    IncorrectOffsetError,
    LiftEnvelopeError,
    MissingExtraError,
    PublishError,
    ServerError,
    TransportError,
    UsageError,
    UsageTypeError,
)

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
        return kind("closed", 3)
    if issubclass(kind, MissingExtraError):
        return kind("run pip install", name="h2")
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
        ],
    )
    def test_also_the_standard_ones(self, kind: type[Exception], base: type[Exception]) -> None:
        assert issubclass(kind, base)

    def test_what_may_succeed_again(self) -> None:
        assert {kind for kind in CLASSES if kind.retriable} == {TransportError, AckTimeoutError}


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
