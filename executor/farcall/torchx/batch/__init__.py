"""Batch apps: the AWS Batch parts of the scheduler ``aws_batch``."""
