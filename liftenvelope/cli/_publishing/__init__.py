"""Parts of ``publish``: the message, lines of standard input, senders."""
