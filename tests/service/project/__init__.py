"""A stand-in for a user's own package, which the job cannot import."""
