"""Member of a group: its session, readers, positions and columns."""
