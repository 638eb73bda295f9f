"""Client objects of a user's script: executor, task, sweep, job."""
