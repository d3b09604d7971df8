"""Groups over NATS and Liftbridge's own, for ``group``, ``monitor`` and ``top``."""
