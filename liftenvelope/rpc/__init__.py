"""gRPC over HTTP/2, lean: the transport below the Liftbridge client.

- :mod:`liftenvelope.rpc.aio`: the client's channel for asyncio.
- :mod:`liftenvelope.rpc.blocking`: the same over a plain socket, without an event loop.
- :mod:`liftenvelope.rpc.server`: a server for asyncio; :mod:`liftenvelope.rpc.limits`: its limits on clients.
- :mod:`liftenvelope.rpc.client_side`, :mod:`liftenvelope.rpc.server_side`: both ends of a connection without
  any I/O, on what they share (:mod:`liftenvelope.rpc.connection`).
- :mod:`liftenvelope.rpc.events`: what they tell the shells.
- :mod:`liftenvelope.rpc.keepalive`: when to ping. :mod:`liftenvelope.rpc.headers`: timeouts, metadata, texts.
- :mod:`liftenvelope.rpc.status`: the gRPC status codes, and the error that carries one.

Importing this package costs nothing; what speaks HTTP/2 needs the ``[client]`` extra.
"""
