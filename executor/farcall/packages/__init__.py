"""Packages that travel with tasks: what is installed here, or wanted, as archives."""
