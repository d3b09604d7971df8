"""Minimal gRPC over HTTP/2: the transport below the Liftbridge client.

- :mod:`liftenvelope.rpc.aio`: client channel for asyncio.
- :mod:`liftenvelope.rpc.blocking`: client channel over a blocking socket, without an event loop.
- :mod:`liftenvelope.rpc.server`: server for asyncio. :mod:`liftenvelope.rpc.limits`: its limits on clients.
- :mod:`liftenvelope.rpc._client_side`, :mod:`liftenvelope.rpc._server_side`: the two ends of a connection,
  sans-io, on a common base (:mod:`liftenvelope.rpc._connection`).
- :mod:`liftenvelope.rpc._events`: events from the sans-io connections to the code that does the I/O.
- :mod:`liftenvelope.rpc._keepalive`: ping schedule. :mod:`liftenvelope.rpc._headers`: timeouts, metadata,
  status texts.
- :mod:`liftenvelope.rpc.tls_files`: TLS contexts of clients, also for NATS, from PEM files.
- :mod:`liftenvelope.rpc.status`: gRPC status codes, and the error that carries one.

Importing this package loads no dependency. The modules that speak HTTP/2 need the ``[client]`` extra.
"""
