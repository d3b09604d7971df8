"""Subscriptions: their start, what they do after a loss, reverse and merged ones."""
