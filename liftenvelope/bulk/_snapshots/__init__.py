"""Backups by JetStream's snapshots, which keep sequences and timestamps."""
