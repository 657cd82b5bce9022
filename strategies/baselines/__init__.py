"""Baselines: each in one file, both halves in it."""
