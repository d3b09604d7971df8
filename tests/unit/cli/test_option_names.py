"""Errors of calls name the options of the command in place of the arguments."""

from __future__ import annotations

import click
import pytest

from liftenvelope.cli._options.names import with_option_names
from liftenvelope.cli._root import root


def shown(words: str, text: str) -> str:
    """Return the text of an error as a command shows it."""
    command: click.Command = root
    context = click.Context(root)
    for word in words.split():
        assert isinstance(command, click.Group)
        found = command.get_command(context, word)
        assert found is not None
        command, context = found, click.Context(found, parent=context)
    with context.scope():
        return with_option_names(text)


@pytest.mark.parametrize(
    ("words", "text", "expected"),
    [
        ("publish", "expected_last_sequence must be", "--expected-sequence must be"),
        ("stream create", "retentionMaxAge must be", "--max-age must be"),
        ("write", "partition must be None for X", "--partition must be left out for X"),
        ("restore", "archive must have files", "FOLDER must have files"),
        ("restore", "give it by archived_stream, or", "give it by --archived-stream, or"),
        ("restore", ", or restore a backup by restore_backup", ", or give the folder of a backup"),
        ("restore", "config must not be so: use the argument stream", "--config must not be so: use STREAM"),
        ("read", "got 'key': envelope='columns' adds it", "got 'key': --envelope columns adds it"),
        ("read", "read from start=7 or 'earliest'", "read from --start 7 or 'earliest'"),
        ("read", "with on_bad='column' or a bulk.DeadLetter", "with --on-bad column or --dead-letter"),
        ("read", "leave it out of columns=", "leave it out of --columns"),
        ("write", "pass envelope=True, or drop it", "pass --envelope, or drop it"),
        ("write", "with message_id=... rows could", "with --message-id rows could"),
        ("write", "ORDERS has no_ack=True: nobody", "ORDERS has no_ack: nobody"),
        ("write", "got 9: raise pack_bytes", "got 9: raise --pack-bytes"),
        ("read", ": give the format a prefix='...', or", ": give --payload a prefix, such as {0}, or"),
        ("stream ls", "9: raise max_listed of JetStream if there are so many", "9, {1} lists"),
        ("tail", "is 9: raise max_message_bytes (in Spark, maxMessageBytes)", "is 9, {1} reads"),
        ("publish", "9: raise max_request_bytes of connect() if the server accepts more", "9, {1} sends"),
        ("write", "9: raise max_request_bytes (in Spark, maxRequestBytes) if the server accepts more",
         "9, {1} sends"),
        ("read", "of 9 bytes; max_message_bytes is 8", "of 9 bytes; {1} reads is 8"),
        ("backup", "give a larger max_bytes.", "give a larger --max-bytes."),
        ("tail", "subscribe with resume=True, or wake it", "subscribe with --resume, or wake it"),
    ],
)  # fmt: skip
def test_arguments_become_options(words: str, text: str, expected: str) -> None:
    example = """'{"format": "json", "prefix": "p_"}'"""
    assert shown(words, text) == expected.replace("{0}", example).replace("{1}", "the most that the command")


@pytest.mark.parametrize(
    "text",
    [
        "dead_letter[0]: message 5 is gone",
        "no stream 'dead_letter'",
        "no subject orders.dead_letter.x",
        "--columns must have a name, got 'on_bad=column'",
        "the file /tmp/dead_letter does not exist",
        "columns are missing",
        "the stream's config isn't valid",
    ],
)
def test_other_names_stay(text: str) -> None:
    assert shown("read", text) == text
