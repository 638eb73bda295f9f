"""The command line, a module for each theme; nothing below the doors imports it."""
