"""Shell of a group consumer, shared by :mod:`liftenvelope.client` and :mod:`liftenvelope.group`."""
