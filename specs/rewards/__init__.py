"""Whole objectives: rewards come in, and what an advantage is stands in the hierarchy."""
