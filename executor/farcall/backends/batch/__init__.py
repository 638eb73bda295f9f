"""AWS Batch backend: the only user of Batch's calls, documents and texts."""
