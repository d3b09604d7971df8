"""Members of Liftbridge's groups, and checkpoints of their positions."""
