"""Values: errors, settings, jobs, failure reasons. No I/O, no other package."""
