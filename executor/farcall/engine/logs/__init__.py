"""Log readers for a task's output, from all sources, during the run or after it."""
