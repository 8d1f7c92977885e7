"""References for tests: right numbers, computed without the library."""
