"""Jobs of one event loop: submit, track, fetch and terminate them."""
