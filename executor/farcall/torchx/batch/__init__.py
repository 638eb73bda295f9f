"""Batch apps: what of the scheduler ``aws_batch`` is AWS Batch's own."""
