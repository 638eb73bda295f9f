"""Command line, one module per topic; lower layers do not import it."""
