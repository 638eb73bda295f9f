"""Hypothesis without deadlines and without a database in the repository."""

from hypothesis import settings

settings.register_profile("contract", deadline=None, database=None)
settings.load_profile("contract")
