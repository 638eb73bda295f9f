"""IAM policies as the embedded AWS enforces them."""
