"""What is done with jobs that are there: find, explain, describe, cancel. Prints nothing."""
