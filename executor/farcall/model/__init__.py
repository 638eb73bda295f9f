"""Words and values: errors, settings, jobs, verdicts. No I/O, and nothing of any other room."""
