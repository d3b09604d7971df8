"""Permissions, quotas and publish counts of the clients."""
