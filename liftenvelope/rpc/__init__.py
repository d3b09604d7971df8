"""gRPC over HTTP/2, lean: the transport below the Liftbridge client.

- :mod:`liftenvelope.rpc.status`: the gRPC status codes, and the error that carries one.
- :mod:`liftenvelope.rpc.framing`: gRPC messages in a stream of bytes.
- :mod:`liftenvelope.rpc.connection`: the client's side of one connection, without any I/O.
- :mod:`liftenvelope.rpc.blocking`: that connection over a socket.

Importing this package costs nothing; ``connection`` and ``blocking`` need the ``[client]`` extra.
"""
