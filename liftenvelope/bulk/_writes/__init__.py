"""Publishes the rows of a table to JetStream or Liftbridge."""
