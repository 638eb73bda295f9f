"""The work of one event loop: gather and submit, follow, fetch and end jobs. No user's objects."""
