"""Object storage in one bucket: bundles, outcomes, output chunks, deletions."""
