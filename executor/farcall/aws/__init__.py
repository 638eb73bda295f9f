"""AWS clients: one session, one pace, and translated errors. No jobs, no keys."""
