"""State that gateways share in buckets: stream records, live gateways, leases and the activity stream."""
