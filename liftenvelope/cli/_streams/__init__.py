"""Parts of ``stream`` and ``consumer``: settings, changes, events, stored messages, leaders."""
