"""Parts of ``serve``: settings and their file, logging, workers, the monitor."""
