"""Checks of ``doctor``, on each kind of server."""
