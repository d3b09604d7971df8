"""The table of gRPC methods, and the calls of metadata and health."""
