"""Values: errors, settings, jobs, failure reasons. No I/O; imports no other farcall package."""
