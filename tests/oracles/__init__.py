"""What the right numbers are, worked out apart from the library."""
