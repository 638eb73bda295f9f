"""The emulated Batch: its rules, without HTTP and without processes."""
