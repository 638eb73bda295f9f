"""What a user's script holds: executor, task, sweep, job. The engine does the work."""
