"""Worker processes, as their supervisor runs and measures them."""
