"""Removal of passwords, tokens and seeds from output, logs, errors and ``repr``."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["without_secrets"]

#: User, password or token of a URL, up to the last ``@`` before a comma or blank: a password may have an
#: unescaped slash, ``#`` or quote.
_LOGIN: Final = re.compile(r"(?<=://)[^\s,]*@")
#: User, password or token of ``user:password@host`` without a scheme.
_BARE_LOGIN: Final = re.compile(r"(?<![^,\s])(?![\w+.-]*://)[^\s,]*@")
#: ``user:password`` of a URL without a host: the text after the colon is not a port, nor the word in
#: ``nats://host:port``, as errors have it.
_NO_HOST: Final = re.compile(r"(?<=://)([^\s,:/\[]*):(?!\d{1,5}(?:\D|$)|port(?:[\s,;]|$))[^\s,]*")
#: Seed of an nkey, for example one passed instead of the path of its file.
_SEED: Final = re.compile(r"\bS[ACNOPUX][A-Z2-7]{56}\b")


def without_secrets(text: object) -> str:
    """Remove users, passwords and tokens of URLs, and nkey seeds, from a text.

    Args:
        text: The text, or an object to convert with ``str``.

    Example:
        >>> without_secrets("nats://user:p@ss@one:4222,token@two:4222")
        'nats://one:4222,two:4222'
        >>> without_secrets("nats://user:p@ss"), without_secrets("nats://user:pass")
        ('nats://ss', 'nats://user:***')
    """
    without_logins = _BARE_LOGIN.sub("", _LOGIN.sub("", str(text)))
    return _SEED.sub("***", _NO_HOST.sub(r"\1:***", without_logins))
