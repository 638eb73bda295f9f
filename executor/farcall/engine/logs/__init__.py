"""Log readers: what a task printed, wherever it lies, as it comes or from its end."""
