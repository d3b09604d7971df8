"""Roads of a publish: a call of its own, or one pipelined stream to each broker."""
