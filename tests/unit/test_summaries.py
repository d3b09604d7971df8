"""Summaries of publishing: one vocabulary, and the old names for one more version."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from liftenvelope.bulk import Written
from liftenvelope.client._publish_summary import PublishSummary
from liftenvelope.errors import AckTimeoutError, LiftEnvelopeError, PublishError
from liftenvelope.nats._batch_acks import BatchSummary

FAILURES: dict[int, LiftEnvelopeError] = {2: AckTimeoutError("late"), 5: PublishError(1, "refused")}


def published(failures: dict[int, LiftEnvelopeError]) -> PublishSummary:
    return PublishSummary(7 - len(failures), failures, {0: (0, 4)})


def batch(failures: dict[int, LiftEnvelopeError]) -> BatchSummary:
    summary = BatchSummary(7)
    summary.failures.update(failures)
    return summary


@pytest.mark.parametrize("make", [published, batch])
def test_summary_with_failures(
    make: Callable[[dict[int, LiftEnvelopeError]], PublishSummary | BatchSummary],
) -> None:
    summary = make(FAILURES)
    assert (summary.acked, summary.ok, list(summary.failures)) == (5, False, [2, 5])
    with pytest.raises(ExceptionGroup, match="2 of 7 messages failed") as info:
        summary.raise_for_failures()
    assert info.value.exceptions == tuple(FAILURES.values())
    assert "message 5 of the batch" in info.value.exceptions[1].__notes__
    assert "5 stored, 2 failed" in repr(summary) + str(summary)


@pytest.mark.parametrize("summary", [published({}), batch({}), Written(7, 70, 1, {0: (0, 6)})])
def test_summary_without_failures(summary: PublishSummary | BatchSummary | Written) -> None:
    assert (summary.acked, summary.ok, dict(summary.failures)) == (7, True, {})
    summary.raise_for_failures()


def test_old_names_warn_and_name_the_new_ones() -> None:
    with pytest.warns(
        DeprecationWarning, match=r"PublishSummary.failed .* use PublishSummary.failures"
    ) as seen:
        assert published(FAILURES).failed == tuple(FAILURES.items())
    assert seen[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=r"Written.rows .* use Written.acked") as seen:
        assert Written(7, 70, 1, {}).rows == 7
    assert seen[0].filename == __file__


def test_summary_of_an_error_is_pickled_with_it() -> None:
    found = pickle.loads(pickle.dumps(published(FAILURES)))
    assert (found.acked, list(found.failures)) == (5, [2, 5])
