"""Hypothesis without deadlines and without a database in the repository."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("contract", deadline=None, database=None)
settings.load_profile("contract")
