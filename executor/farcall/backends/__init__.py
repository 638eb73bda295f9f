"""Where jobs run: a folder for each backend. Nothing here waits for a task's value."""
