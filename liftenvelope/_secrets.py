"""Keeps passwords, tokens and seeds out of output, logs, errors and ``repr``."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["without_secrets"]

#: User, password or token of a URL, up to the last ``@`` before a comma or blank: an unescaped slash, ``#``
#: or quote may be part of the password.
_LOGIN: Final = re.compile(r"(?<=://)[^\s,]*@")
#: The same in ``user:password@host``, where the scheme is missing.
_BARE_LOGIN: Final = re.compile(r"(?<![^,\s])(?![\w+.-]*://)[^\s,]*@")
#: ``user:password`` of a URL whose host is missing: after the colon is no port.
_NO_HOST: Final = re.compile(r"(?<=://)([^\s,:/\[]*):(?!\d{1,5}(?:\D|$))[^\s,]*")
#: Seed of an nkey, such as one given in place of the file that holds it.
_SEED: Final = re.compile(r"\bS[ACNOPUX][A-Z2-7]{56}\b")


def without_secrets(text: object) -> str:
    """Return a text without the users, passwords and tokens of URLs, and without nkey seeds.

    Args:
        text: The text, or an object whose ``str`` is meant.

    Example:
        >>> without_secrets("nats://user:p@ss@one:4222,token@two:4222")
        'nats://one:4222,two:4222'
        >>> without_secrets("nats://user:p@ss"), without_secrets("nats://user:pass")
        ('nats://ss', 'nats://user:***')
    """
    without_logins = _BARE_LOGIN.sub("", _LOGIN.sub("", str(text)))
    return _SEED.sub("***", _NO_HOST.sub(r"\1:***", without_logins))
