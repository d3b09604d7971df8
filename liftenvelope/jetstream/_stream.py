"""``Stream``: reads, purges and deletes messages of one stream, and manages its consumers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, Self

from liftenvelope._checks import MAX_INT64, as_count
from liftenvelope.errors import UsageError
from liftenvelope.jetstream import _consumer_requests as requests
from liftenvelope.jetstream import listing
from liftenvelope.jetstream._consumer import Consumer
from liftenvelope.jetstream._consumer_config import ConsumerConfig, DeliverPolicy, ReplayPolicy
from liftenvelope.jetstream._leaders import step_down
from liftenvelope.jetstream._ordered.consumer import OrderedConsumer
from liftenvelope.jetstream._records import check_moment, moment_text
from liftenvelope.jetstream._stored import StoredMessage, direct_message, direct_messages, stored_message
from liftenvelope.jetstream.api import Api, natural, read_as
from liftenvelope.jetstream.infos import ConsumerInfo, StreamInfo
from liftenvelope.jetstream.names import check_filter, check_stream_name

__all__ = ["Stream"]


class Stream:
    """Handle of an existing stream, from :meth:`JetStream.stream` or :meth:`JetStream.create_stream`.

    A handle holds only the last info reply of the server and needs no closing.

    Args:
        api: JetStream API.
        info: Info reply of the server.

    Attributes:
        name: Name of the stream.
    """

    def __init__(self, api: Api, info: StreamInfo) -> None:
        self._api = api
        self._info = info
        self.name = info.config.name

    @classmethod
    async def find(cls, api: Api, name: str, *, timeout: float | None = None) -> Self:
        """Look up a stream by its name.

        Raises:
            StreamNotFoundError: The stream does not exist.
        """
        subject = f"STREAM.INFO.{check_stream_name(name)}"
        return cls(api, await api.request_as(StreamInfo.from_json, subject, timeout=timeout))

    @property
    def cached_info(self) -> StreamInfo:
        """Last info reply of the server; sends no request."""
        return self._info

    async def info(
        self,
        *,
        subjects_filter: str | None = None,
        deleted_details: bool = False,
        timeout: float | None = None,
    ) -> StreamInfo:
        """Request the configuration and state of the stream.

        Args:
            subjects_filter: Also count the messages on each matching subject, in ``state.subjects``.
            deleted_details: Also list the deleted sequences, in ``state.deleted``.
            timeout: Seconds to wait for each reply. Default: the timeout of the context.

        Raises:
            StreamNotFoundError: The stream was deleted.
            ServerProtocolError: There are more subjects than ``max_listed`` of the context.
        """
        request: dict[str, Any] = {"deleted_details": True} if deleted_details else {}
        if subjects_filter is not None:
            request["subjects_filter"] = check_filter(subjects_filter)
        answer, subjects, total = await self._info_page(request, timeout)
        while subjects_filter is not None and len(subjects) < total:
            self._api.check_listed(len(subjects), f"subjects of stream {self.name!r}")
            _, page, _ = await self._info_page({**request, "offset": len(subjects)}, timeout)
            if page.keys() <= subjects.keys():
                break  # subjects were removed meanwhile: the total will not be reached
            subjects |= page
        if subjects:
            answer["state"]["subjects"] = subjects
        self._info = read_as(StreamInfo.from_json, answer, f"the state of stream {self.name!r}")
        return self._info

    async def _info_page(
        self, request: dict[str, Any], timeout: float | None
    ) -> tuple[dict[str, Any], dict[str, int], int]:
        """Request one page and return the reply, its subjects, and the total number of subjects."""

        def read(answer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int], int]:
            return answer, dict(answer["state"].get("subjects") or {}), natural(answer.get("total", 0))

        return await self._api.request_as(read, f"STREAM.INFO.{self.name}", request or None, timeout=timeout)

    async def purge(
        self,
        *,
        keep: int | None = None,
        sequence: int | None = None,
        subject: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Delete messages. Without arguments, delete all of them.

        Args:
            keep: Number of newest messages to keep; excludes ``sequence``.
            sequence: Delete only messages before this sequence.
            subject: Delete only messages on matching subjects; wildcards are allowed.
            timeout: Seconds to wait. Default: the timeout of the context.

        Returns:
            Number of deleted messages.

        Raises:
            StreamNotFoundError: The stream was deleted.
            JetStreamError: The stream forbids purging.
            UsageError: An argument is invalid; nothing was sent.
        """
        if keep is not None and sequence is not None:
            raise UsageError(
                f"keep {keep!r} and sequence {sequence!r} exclude each other; leave one of them out"
            )
        request: dict[str, Any] = {}
        if keep is not None:
            request["keep"] = as_count("keep", keep, 0, MAX_INT64)
        if sequence is not None:
            request["seq"] = as_count("sequence", sequence, 1, MAX_INT64)
        if subject is not None:
            request["filter"] = check_filter(subject)

        def purged(answer: dict[str, Any]) -> int:
            return natural(answer.get("purged", 0))

        return await self._api.request_as(
            purged, f"STREAM.PURGE.{self.name}", request or None, timeout=timeout
        )

    async def step_down(self, preferred: str | None = None, *, timeout: float | None = None) -> str:
        """Make the leader of the stream step down, and wait for the next one.

        Args:
            preferred: Name of the server that should lead (server 2.11). Default: any other replica.
            timeout: Seconds for the whole call. Default: the timeout of the context.

        Returns:
            Name of the new leader. Without ``preferred`` it may be the old one, elected again.

        Raises:
            UsageError: There is a single replica, or ``preferred`` has none or leads already.
            StreamNotFoundError: The stream was deleted.
            JetStreamError: The servers are no cluster.
            CallTimeoutError: No leader was elected in time, or the old one again by servers that do not tell
                ``leader_since``; or ``preferred`` was not elected in time, or lost three elections.
        """
        return await step_down(
            self._api,
            f"STREAM.LEADER.STEPDOWN.{self.name}",
            lambda seconds: self.info(timeout=seconds),
            preferred,
            timeout,
        )

    async def get_message(
        self,
        sequence: int | None = None,
        *,
        last_by_subject: str | None = None,
        next_by_subject: str | None = None,
        direct: bool | None = None,
        timeout: float | None = None,
    ) -> StoredMessage:
        """Read one message.

        Args:
            sequence: Read the message with this sequence; with ``next_by_subject``, the first match from this
                sequence on.
            last_by_subject: Read the last message on a subject; wildcards are allowed.
            next_by_subject: Read the first message on a subject; wildcards are allowed.
            direct: Let any replica answer (ADR-31): faster, but the newest message may be missing. Default:
                the stream's ``allow_direct``.
            timeout: Seconds to wait. Default: the timeout of the context.

        Raises:
            MessageNotFoundError: No such message.
            NoJetStreamError: ``direct`` is set, but no server answers direct requests.
            UnsupportedByServerError: The read is direct, and the server sends no headers.
            UsageError: None of the first three is given, or an argument is invalid; nothing was sent.

        Example::

            message = await stream.get_message(last_by_subject="orders.new")
            print(message.sequence, message.data)
        """
        request = _one_message(sequence, last_by_subject, next_by_subject)
        if self._info.config.allow_direct if direct is None else direct:
            seconds = self._api.seconds_of(timeout)
            return await direct_message(self._api, self.name, request, timeout=seconds)
        return await self._api.request_as(
            lambda answer: stored_message(self.name, answer["message"]),
            f"STREAM.MSG.GET.{self.name}",
            request,
            timeout=timeout,
        )

    def get_messages(
        self,
        batch: int,
        *,
        sequence: int | None = None,
        start_time: datetime | None = None,
        subject: str | None = None,
        max_bytes: int | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[StoredMessage]:
        """Read consecutive messages by one direct request (ADR-31; server 2.11, ``allow_direct``).

        Any replica may answer, also one that lags: the newest messages may be missing.

        Args:
            batch: Maximum number of messages.
            sequence: First sequence. Default: the first message.
            start_time: Start time instead of a sequence, with a time zone.
            subject: Read only messages on matching subjects; wildcards are allowed.
            max_bytes: Maximum number of bytes; at least one message is returned in any case. Default: the
                server's ``max_pending``, 64 MiB unless configured. If ``pending`` of the last message is
                not 0, request the rest.
            timeout: Seconds to wait for each message. Default: the timeout of the context.

        Raises:
            MessageNotFoundError: No message matches.
            NoJetStreamError: No server answers direct requests.
            CallTimeoutError: The next message did not arrive in time.
            TransportError: The connection was closed, or lost before the last message: request the rest.
            UnsupportedByServerError: The server is older than 2.11, or sends no headers.
            UsageError: An argument is invalid; nothing was sent.

        Example::

            async for message in stream.get_messages(100, subject="orders.*"):
                print(message.sequence, message.pending)
        """
        request: dict[str, Any] = {"batch": as_count("batch", batch, 1, MAX_INT64)}
        if sequence is not None and start_time is not None:
            raise UsageError("sequence and start_time exclude each other; leave one of them out")
        if start_time is not None:
            request["start_time"] = moment_text(check_moment("start_time", start_time))
        else:
            request["seq"] = as_count("sequence", 1 if sequence is None else sequence, 1, MAX_INT64)
        if subject is not None:
            request["next_by_subj"] = check_filter(subject)
        if max_bytes is not None:
            request["max_bytes"] = as_count("max_bytes", max_bytes, 1, MAX_INT64)
        return self._batch(request, timeout)

    def get_last_messages(
        self,
        subjects: Sequence[str],
        *,
        batch: int | None = None,
        max_bytes: int | None = None,
        up_to_sequence: int | None = None,
        up_to_time: datetime | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[StoredMessage]:
        """Read the last message of many subjects, from one snapshot (ADR-31; server 2.11, ``allow_direct``).

        Args:
            subjects: Subjects to read; wildcards are allowed. The server allows at most 1,024 subjects.
            batch: Maximum number of messages.
            max_bytes: Maximum number of bytes: see :meth:`get_messages`.
            up_to_sequence: Ignore messages after this sequence. Default: the current state.
            up_to_time: Ignore messages after this time instead, with a time zone.
            timeout: Seconds to wait for each message. Default: the timeout of the context.

        Raises:
            MessageNotFoundError: No message matches.
            JetStreamError: Too many subjects match (code 413).
            NoJetStreamError, CallTimeoutError, UnsupportedByServerError, UsageError: As for
                :meth:`get_messages`.
        """
        if isinstance(subjects, str) or not subjects:
            raise UsageError(f"subjects must be a sequence of at least one, got {subjects!r}")
        if up_to_sequence is not None and up_to_time is not None:
            raise UsageError("up_to_sequence and up_to_time exclude each other; leave one of them out")
        request: dict[str, Any] = {"multi_last": [check_filter(subject) for subject in subjects]}
        if batch is not None:
            request["batch"] = as_count("batch", batch, 1, MAX_INT64)
        if max_bytes is not None:
            request["max_bytes"] = as_count("max_bytes", max_bytes, 1, MAX_INT64)
        if up_to_sequence is not None:
            request["up_to_seq"] = as_count("up_to_sequence", up_to_sequence, 1, MAX_INT64)
        if up_to_time is not None:
            request["up_to_time"] = moment_text(check_moment("up_to_time", up_to_time))
        return self._batch(request, timeout)

    def _batch(self, request: dict[str, Any], timeout: float | None) -> AsyncIterator[StoredMessage]:
        seconds = self._api.seconds_of(timeout)
        return direct_messages(self._api, self.name, request, batch=True, timeout=seconds)

    async def delete_message(
        self, sequence: int, *, secure: bool = False, timeout: float | None = None
    ) -> None:
        """Delete one message.

        Args:
            sequence: Sequence of the message.
            secure: Also overwrite the message with random data, which takes longer. Default false.
            timeout: Seconds to wait. Default: the timeout of the context.

        Raises:
            JetStreamError: No such message (error 10057 or 10043), or the stream forbids deleting.
        """
        request: dict[str, Any] = {"seq": as_count("sequence", sequence, 1, MAX_INT64)}
        if not secure:
            request["no_erase"] = True
        await self._api.request(f"STREAM.MSG.DELETE.{self.name}", request, timeout=timeout)

    # Consumers

    async def create_consumer(self, config: ConsumerConfig, *, timeout: float | None = None) -> Consumer:
        """Create a consumer. If the consumer exists with the same configuration, return it.

        Raises:
            ConsumerExistsError: The consumer exists with another configuration.
            JetStreamError: The server rejects the configuration.
            UnsupportedByServerError: The server is too old for a setting of ``config``, and has ignored it:
                the consumer exists without it.
        """
        info = await requests.put_consumer(self._api, self.name, config, "create", timeout=timeout)
        return Consumer(self._api, info)

    async def update_consumer(self, config: ConsumerConfig, *, timeout: float | None = None) -> Consumer:
        """Update an existing consumer.

        Raises:
            ConsumerNotFoundError: The consumer does not exist.
            JetStreamError: The server rejects the change.
            UnsupportedByServerError: As for :meth:`create_consumer`.
        """
        info = await requests.put_consumer(self._api, self.name, config, "update", timeout=timeout)
        return Consumer(self._api, info)

    async def create_or_update_consumer(
        self, config: ConsumerConfig, *, timeout: float | None = None
    ) -> Consumer:
        """Create a consumer, or update an existing one.

        Raises:
            JetStreamError: The server rejects the configuration or the change.
            UnsupportedByServerError: As for :meth:`create_consumer`.
        """
        info = await requests.put_consumer(self._api, self.name, config, "", timeout=timeout)
        return Consumer(self._api, info)

    async def consumer(self, name: str, *, timeout: float | None = None) -> Consumer:
        """Look up a consumer by its name.

        Raises:
            ConsumerNotFoundError: The consumer does not exist.
        """
        info = await requests.consumer_info(self._api, self.name, name, timeout=timeout)
        return Consumer(self._api, info)

    async def delete_consumer(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a consumer.

        Raises:
            ConsumerNotFoundError: The consumer does not exist.
        """
        await requests.delete_consumer(self._api, self.name, name, timeout=timeout)

    def consumers(self, *, timeout: float | None = None) -> AsyncIterator[ConsumerInfo]:
        """Iterate over all consumers, one page at a time.

        Args:
            timeout: Seconds to wait for each page. Default: the timeout of the context.
        """
        return listing.consumer_infos(self._api, self.name, timeout)

    def consumer_names(self, *, timeout: float | None = None) -> AsyncIterator[str]:
        """Iterate over the names of all consumers, one page at a time: see :meth:`consumers`."""
        return listing.consumer_names(self._api, self.name, timeout)

    def ordered_consumer(
        self,
        *,
        filter_subjects: Sequence[str] = (),
        deliver_policy: DeliverPolicy = DeliverPolicy.ALL,
        opt_start_seq: int | None = None,
        opt_start_time: datetime | None = None,
        headers_only: bool = False,
        replay_policy: ReplayPolicy = ReplayPolicy.INSTANT,
        inactive_threshold: float = 300.0,
        max_reset_attempts: int | None = None,
    ) -> OrderedConsumer:
        """Return a consumer that reads in order, without acks, and is recreated when it is lost.

        Args:
            filter_subjects: Deliver only messages that match one of these subjects. Default: all messages.
            deliver_policy: Start position. Default: the first message.
            opt_start_seq: First sequence, for BY_START_SEQUENCE.
            opt_start_time: Start time, for BY_START_TIME, with a time zone.
            headers_only: Omit the payloads. Default false.
            replay_policy: Delivery rate. Default INSTANT.
            inactive_threshold: Seconds after which the server removes the consumer of a reader that has not
                pulled for so long, dead or alive. Default 300, or less if ``consumer_limits`` of
                the stream allow less.
            max_reset_attempts: Failed attempts in a row to create the consumer again, after which
                ``messages`` and ``consume`` end with the error of the last one. Default: no limit.

        Raises:
            UsageError: An option is invalid.
        """
        return OrderedConsumer(
            self._api,
            self.name,
            filter_subjects=filter_subjects,
            deliver_policy=deliver_policy,
            opt_start_seq=opt_start_seq,
            opt_start_time=opt_start_time,
            headers_only=headers_only,
            replay_policy=replay_policy,
            inactive_threshold=inactive_threshold,
            max_reset_attempts=max_reset_attempts,
        )

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}>"


def _one_message(sequence: int | None, last: str | None, following: str | None) -> dict[str, Any]:
    if last is not None:
        if sequence is not None or following is not None:
            raise UsageError("last_by_subject excludes sequence and next_by_subject; leave it or them out")
        return {"last_by_subj": check_filter(last)}
    if sequence is None and following is None:
        raise UsageError("sequence, last_by_subject or next_by_subject must be given")
    request: dict[str, Any] = {}
    if sequence is not None:
        request["seq"] = as_count("sequence", sequence, 1, MAX_INT64)
    if following is not None:
        request["next_by_subj"] = check_filter(following)
    return request
