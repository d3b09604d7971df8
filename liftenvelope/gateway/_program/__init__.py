"""Parts of a standalone gateway: its logins, its connection to NATS and its HTTP server."""
