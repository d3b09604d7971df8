"""Serves the publish calls."""
