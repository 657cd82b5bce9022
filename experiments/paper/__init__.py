"""Reproduction of the papers' tables: plans in ``experiments/papers``, run by ``python -m experiments.paper NAME``."""
