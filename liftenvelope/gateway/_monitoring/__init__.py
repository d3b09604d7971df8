"""Readiness, lag and dropped messages of a gateway."""
