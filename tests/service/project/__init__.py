"""Stands for a user's own package: the job cannot import it."""
