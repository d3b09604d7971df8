"""Starts the parts of a gateway, drains its calls and stops it."""
