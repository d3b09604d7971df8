"""Serves subscriptions, cursors and consumer groups."""
