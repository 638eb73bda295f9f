"""Options: their definition, their sources and their help."""
