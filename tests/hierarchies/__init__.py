"""Hierarchies for tests: right, wrong and random ones."""
