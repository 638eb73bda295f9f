"""Synced packages: installed or requested distributions, as archives."""
