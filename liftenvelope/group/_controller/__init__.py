"""Controller of groups: leases, records, and calls one after another."""
