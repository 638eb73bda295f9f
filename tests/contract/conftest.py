"""Hypothesis without deadlines and without a database beside the code."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("contract", deadline=None, database=None)
settings.load_profile("contract")
