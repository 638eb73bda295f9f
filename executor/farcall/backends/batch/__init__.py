"""AWS Batch: its calls, its documents and its texts, which nobody else reads."""
