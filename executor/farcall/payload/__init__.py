"""Python values to bytes and back: arguments, functions, results, output. No network."""
