"""Pull options: checks them against each other and against the consumer's configuration before sending."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypedDict

from liftenvelope._checks import MAX_INT64, as_count, as_seconds
from liftenvelope.errors import PushConsumerError, UsageError
from liftenvelope.jetstream._consumer_config import AckPolicy, ConsumerConfig, PriorityPolicy
from liftenvelope.jetstream._pulling.pull import BYTES_BATCH, PullLimits
from liftenvelope.jetstream._records import to_ns

__all__ = ["ConsumeOptions", "GroupOptions", "OnReconnect", "PullPlan"]

#: Values of ``on_reconnect``.
OnReconnect = Literal["pull", "check"]

_DEFAULT_MESSAGES: Final = 500
#: Maximum number of cached pull payloads per plan.
_MADE: Final = 64
_SHORTEST_EXPIRES: Final = 1.0
_EXPIRES: Final = 30.0
#: Without acks a message that a drain misses is lost, so pulls must expire before a drain stops waiting.
_EXPIRES_WITHOUT_ACKS: Final = 4.0
#: Seconds from which on a pull of a fetch has heartbeats by default, and seconds between them, as in nats.go.
#: ADR-37 requires them above 30 s.
_BEATS_FROM: Final = 10.0
_FETCH_BEAT: Final = 5.0
_SHORTEST_BEAT: Final = 0.5
_LONGEST_BEAT: Final = 30.0
#: The server's default priority timeout, in seconds, for configurations without one.
_PRIORITY_TIMEOUT: Final = 120.0


class GroupOptions(TypedDict, total=False):
    """Priority group options of a pull (ADR-42).

    Attributes:
        group: Name of the group, one of the consumer's ``priority_groups``. Required if the consumer has a
            priority policy.
        min_pending: With the policy OVERFLOW: receive messages only while the consumer has at least this many
            messages left to deliver.
        min_ack_pending: With the policy OVERFLOW: receive messages also while at least this many messages
            are delivered and not acked.
        priority: With the policy PRIORITIZED: 0 to 9, lower values first. The server's default: 0.
    """

    group: str | None
    min_pending: int | None
    min_ack_pending: int | None
    priority: int | None


class ConsumeOptions(GroupOptions, total=False):
    """Options of ``messages`` and ``consume`` besides their limits.

    Attributes:
        expires: Seconds that one pull waits at the server, at least 1. Default 30; 4 with the ack policy
            NONE; less if the default would lose a pin or exceed the consumer's ``max_expires``.
        idle_heartbeat: Seconds between heartbeats of a waiting pull: 0.5 to 30, at most half of ``expires``.
            Default: half of ``expires``.
        threshold_messages: Pull when the messages requested and buffered are fewer than this. Default: half
            of ``max_messages``.
        threshold_bytes: Threshold in bytes, for ``max_bytes``. Default: half of ``max_bytes``.
        on_reconnect: ``"pull"``, the default, pulls again, as the newest revision of ADR-37 requires.
            ``"check"`` looks up the consumer and ends if the consumer is gone, as the first revision did.
        buffer_bytes: Maximum number of bytes requested and buffered, besides ``max_messages``. A larger
            message comes alone. Default: no such limit.
        stop_after: End after this many messages, and request no more than these. Not with ``max_bytes``.
            A pin of the policy PINNED_CLIENT is no longer kept once the last one has arrived: a standby may
            get the pin while the caller works on buffered messages. Default: no end.
    """

    expires: float | None
    idle_heartbeat: float | None
    threshold_messages: int | None
    threshold_bytes: int | None
    on_reconnect: OnReconnect
    buffer_bytes: int | None
    stop_after: int | None


@dataclass(frozen=True, slots=True)
class PullPlan:
    """Checked options, and the pull payloads built from them.

    Attributes:
        limits: Limits for the pull state machine.
        batch: Number of messages that a pull limited by bytes requests.
        fields: Fields of every pull, without its size.
    """

    limits: PullLimits
    batch: int
    fields: dict[str, Any]
    #: Cached payloads by amount, limit in bytes and pin id: most pulls repeat an earlier one.
    _made: dict[tuple[int, int, str | None], bytes] = field(default_factory=dict, repr=False, compare=False)

    def payload(
        self, amount: int, pin_id: str | None, seconds: float | None = None, max_bytes: int = 0
    ) -> bytes:
        """Return the JSON payload of a pull.

        Args:
            amount: Number of messages or bytes to request.
            pin_id: Pin id to send; None for none.
            seconds: Maximum seconds at the server, if less than the plan's ``expires`` is left.
            max_bytes: Number of bytes to request besides an amount in messages; 0 for no such limit.
        """
        key = amount, max_bytes, pin_id
        if seconds is None and (made := self._made.get(key)) is not None:
            return made
        body = self._body(amount, pin_id, seconds)
        if max_bytes:
            body["max_bytes"] = max_bytes
        payload = json.dumps(body, separators=(",", ":")).encode()
        if seconds is None:
            if len(self._made) >= _MADE:
                self._made.clear()
            self._made[key] = payload
        return payload

    def within(self, max_batch: int | None) -> PullPlan:
        """Return the plan with at most ``max_batch`` messages for each pull; None or below 1 for no limit."""
        if max_batch is None or max_batch < 1:
            return self
        limits, batch = self.limits, min(self.batch, max_batch)
        if not limits.in_bytes and limits.limit > max_batch:
            limits = replace(limits, limit=max_batch, threshold=math.ceil(max_batch / 2))
        return replace(self, limits=limits, batch=batch, _made={})

    def _body(self, amount: int, pin_id: str | None, seconds: float | None) -> dict[str, Any]:
        body = dict(self.fields)
        if seconds is not None and seconds < self.limits.expires:
            body["expires"] = to_ns(seconds)
            if 2 * body.get("idle_heartbeat", 0) > body["expires"]:  # the server refuses such a pull
                del body["idle_heartbeat"]
        if self.limits.in_bytes:
            body["batch"], body["max_bytes"] = self.batch, amount
        else:
            body["batch"] = amount
        if pin_id is not None:
            body["id"] = pin_id
        return body


def consume_plan(
    config: ConsumerConfig,
    *,
    max_messages: int | None = None,
    max_bytes: int | None = None,
    expires: float | None = None,
    idle_heartbeat: float | None = None,
    threshold_messages: int | None = None,
    threshold_bytes: int | None = None,
    on_reconnect: OnReconnect = "pull",
    buffer_bytes: int | None = None,
    stop_after: int | None = None,
    group: str | None = None,
    min_pending: int | None = None,
    min_ack_pending: int | None = None,
    priority: int | None = None,
) -> PullPlan:
    """Build the plan of ``messages`` and ``consume``.

    Raises:
        UsageError: An option is invalid, by itself, with another option, or for this consumer.
        PushConsumerError: The consumer is a push consumer.
    """
    fields = group_fields(config, group, min_pending, min_ack_pending, priority)
    if on_reconnect not in ("pull", "check"):
        raise UsageError(f"on_reconnect must be 'pull' or 'check', got {on_reconnect!r}")
    limit, in_bytes = _limit_of(config, max_messages, max_bytes)
    threshold = _threshold_of(limit, in_bytes, threshold_messages, threshold_bytes)
    if buffer_bytes is not None:
        buffer_bytes = _within(
            "buffer_bytes", _of_messages("buffer_bytes", buffer_bytes, in_bytes), config.max_bytes
        )
    if stop_after is not None:
        stop_after = _of_messages("stop_after", stop_after, in_bytes)
    keep_pin = _keep_pin(config)
    seconds = _expires_of(config, expires, keep_pin)
    beat = _beat_of(idle_heartbeat, seconds)
    fields |= _times(seconds, beat)
    limits = PullLimits(
        limit,
        threshold,
        in_bytes,
        seconds,
        beat,
        pinned=bool(keep_pin),
        keep_pin=keep_pin,
        check=on_reconnect == "check",
        max_bytes=buffer_bytes or 0,
        stop_after=stop_after or 0,
    )
    return PullPlan(limits, min(BYTES_BATCH, config.max_batch or BYTES_BATCH), fields)


def fetch_plan(
    config: ConsumerConfig,
    *,
    max_messages: int | None,
    max_bytes: int | None,
    expires: float | None,
    idle_heartbeat: float | None,
    group: str | None = None,
    min_pending: int | None = None,
    min_ack_pending: int | None = None,
    priority: int | None = None,
) -> PullPlan:
    """Build the plan of one fetch. If ``expires`` is None, the pull does not wait (``no_wait``).

    A pull expires early enough to keep a pin, and within the consumer's ``max_expires``. A fetch may last
    longer: it pulls again for the remaining messages.

    Raises:
        UsageError: An option is invalid, by itself, with another option, or for this consumer.
        PushConsumerError: The consumer is a push consumer.
    """
    fields = group_fields(config, group, min_pending, min_ack_pending, priority)
    limit, in_bytes = _limit_of(config, max_messages, max_bytes)
    keep_pin = _keep_pin(config)
    beat = 0.0
    if expires is None:
        fields["no_wait"] = True
    else:
        asked = as_seconds("expires", expires)
        expires = min(asked, keep_pin or math.inf, config.max_expires or math.inf)
        if idle_heartbeat is not None:
            beat = _beat_of(idle_heartbeat, asked)
        elif expires >= _BEATS_FROM:
            beat = _FETCH_BEAT
        beat = min(beat, expires / 2)
        fields |= _times(expires, beat)
    limits = PullLimits(limit, 1, in_bytes, expires or 0.0, beat, pinned=bool(keep_pin))
    return PullPlan(limits, min(BYTES_BATCH, config.max_batch or BYTES_BATCH), fields)


def group_fields(
    config: ConsumerConfig,
    group: str | None,
    min_pending: int | None,
    min_ack_pending: int | None,
    priority: int | None,
) -> dict[str, Any]:
    """Return the group fields of a pull, checked against the consumer's priority policy."""
    if config.is_push:
        raise PushConsumerError(409, f"the consumer pushes to {config.deliver_subject!r}")
    policy = config.priority_policy
    given = {
        "group": group,
        "min_pending": None if min_pending is None else as_count("min_pending", min_pending, 1, MAX_INT64),
        "min_ack_pending": None
        if min_ack_pending is None
        else as_count("min_ack_pending", min_ack_pending, 1, MAX_INT64),
        "priority": None if priority is None else as_count("priority", priority, 0, 9),
    }
    fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if policy is PriorityPolicy.NONE:
        if fields:
            name, value = next(iter(fields.items()))
            raise UsageError(
                f"{name} must be None for a consumer without a priority policy, got {value!r}: servers "
                "before 2.11 know no such policy, and ignore it in a configuration"
            )
        return fields
    if group is None:
        raise UsageError(f"group must be one of the consumer's, {list(config.priority_groups)}, got None")
    if group not in config.priority_groups:
        raise UsageError(
            f"group must be one of the consumer's, {list(config.priority_groups)}, got {group!r}"
        )
    for name, wanted in (
        ("min_pending", PriorityPolicy.OVERFLOW),
        ("min_ack_pending", PriorityPolicy.OVERFLOW),
        ("priority", PriorityPolicy.PRIORITIZED),
    ):
        if name in fields and policy is not wanted:
            raise UsageError(
                f"{name} must be None for the policy {policy}, got {fields[name]!r}: it is for {wanted}"
            )
    return fields


def _limit_of(config: ConsumerConfig, max_messages: int | None, max_bytes: int | None) -> tuple[int, bool]:
    if max_messages is not None and max_bytes is not None:
        raise UsageError(
            "max_messages and max_bytes exclude each other; leave one of them out, or use buffer_bytes"
        )
    if max_bytes is not None:
        return _within("max_bytes", as_count("max_bytes", max_bytes, 1, MAX_INT64), config.max_bytes), True
    if max_messages is None:
        return min(_DEFAULT_MESSAGES, config.max_batch or _DEFAULT_MESSAGES), False
    count = as_count("max_messages", max_messages, 1, MAX_INT64)
    return _within("max_messages", count, config.max_batch), False


def _of_messages(name: str, value: int, in_bytes: bool) -> int:
    """Return a limit that needs pulls of messages."""
    if in_bytes:
        raise UsageError(f"{name} must be None with max_bytes, got {value!r}: use max_messages")
    return as_count(name, value, 1, MAX_INT64)


def _within(name: str, value: int, most: int | None) -> int:
    if most and 0 < most < value:
        raise UsageError(f"{name} must be at most {most}, the consumer's limit for one pull, got {value}")
    return value


def _threshold_of(limit: int, in_bytes: bool, messages: int | None, size: int | None) -> int:
    name, value = ("threshold_bytes", size) if in_bytes else ("threshold_messages", messages)
    other, wrong = ("threshold_messages", messages) if in_bytes else ("threshold_bytes", size)
    if wrong is not None:
        raise UsageError(
            f"{other} must be None with {'max_bytes' if in_bytes else 'max_messages'}, got {wrong!r}"
        )
    return math.ceil(limit / 2) if value is None else as_count(name, value, 1, limit)


def _keep_pin(config: ConsumerConfig) -> float:
    if config.priority_policy is not PriorityPolicy.PINNED_CLIENT:
        return 0.0
    return (config.priority_timeout or _PRIORITY_TIMEOUT) / 2


def _times(expires: float, beat: float) -> dict[str, int]:
    """Return both times in nanoseconds. The server refuses heartbeats above half of ``expires``.

    Rounding alone could exceed that limit by one nanosecond, hence the ``min``. Rounding could also give 0:
    such a pull never expires. The server refuses times beyond 64 bits of nanoseconds, which are 292 years.
    """
    waits = min(max(to_ns(expires), 1), MAX_INT64)
    return {"expires": waits, "idle_heartbeat": min(to_ns(beat), waits // 2)} if beat else {"expires": waits}


def _expires_of(config: ConsumerConfig, expires: float | None, keep_pin: float) -> float:
    if expires is not None:
        if as_seconds("expires", expires) < _SHORTEST_EXPIRES:
            raise UsageError(f"expires must be at least {_SHORTEST_EXPIRES} s, got {expires}")
        if config.max_expires and expires > config.max_expires:
            raise UsageError(
                f"expires must be at most the consumer's max_expires, {config.max_expires} s, got {expires}"
            )
    default = _EXPIRES_WITHOUT_ACKS if config.ack_policy is AckPolicy.NONE else _EXPIRES
    seconds = min(expires or default, config.max_expires or math.inf)
    # The server counts only pulls as signs of life of a pinned client.
    return min(seconds, keep_pin) if keep_pin else seconds


def _beat_of(idle_heartbeat: float | None, expires: float) -> float:
    if idle_heartbeat is None:
        return min(max(expires / 2, _SHORTEST_BEAT), _LONGEST_BEAT, expires / 2)
    if not _SHORTEST_BEAT <= as_seconds("idle_heartbeat", idle_heartbeat) <= min(_LONGEST_BEAT, expires / 2):
        raise UsageError(
            f"idle_heartbeat must be {_SHORTEST_BEAT} to {_LONGEST_BEAT} s and at most half of expires "
            f"({expires} s), got {idle_heartbeat}"
        )
    return idle_heartbeat
