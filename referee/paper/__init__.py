"""Reproduction of the papers' tables: plans in ``referee/papers``, run by ``python -m referee.paper NAME``."""
