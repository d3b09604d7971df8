"""Serves the calls that create, change and delete streams."""
