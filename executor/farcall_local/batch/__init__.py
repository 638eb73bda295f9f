"""The embedded Batch: its rules, without HTTP and without processes."""
