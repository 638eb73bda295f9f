"""Serialization of arguments, functions, results and output. No network access."""
