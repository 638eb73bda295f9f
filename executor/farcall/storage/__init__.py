"""Object storage, one bucket: bundles, outcomes, chunks of output, deletions. Nothing of Batch."""
