"""References for tests: results computed without the library."""
