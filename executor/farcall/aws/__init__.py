"""AWS clients: one session, one pace, and AWS's refusals in our words. Nothing of jobs or keys."""
