"""Emulated Batch: its rules, without HTTP and without processes."""
