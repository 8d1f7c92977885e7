"""Tokens and trajectories that are left out, by how far the policy has moved."""
