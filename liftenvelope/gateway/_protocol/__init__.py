"""Terms of Liftbridge's API for JetStream: names, requests, subjects and statuses."""
