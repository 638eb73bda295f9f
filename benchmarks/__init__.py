"""What backs the numbers in the README: ``python -m benchmarks`` measures and writes them."""
