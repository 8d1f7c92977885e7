"""Hierarchies to test with: right ones, wrong ones, and ones drawn at random."""
