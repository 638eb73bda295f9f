"""Values: errors, jobs, failure reasons, output lines. No I/O, no other package."""
