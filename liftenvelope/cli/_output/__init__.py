"""Text, tables and JSON that commands print; questions before something is deleted."""
