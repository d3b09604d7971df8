"""Range reads for both servers: columns, threads, plan, and the retry loop."""
