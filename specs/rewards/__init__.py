"""Whole objectives: the hierarchy declares how rewards become advantages."""
