"""Reproduction of the papers' tables: TOML plans under ``experiments/papers``, run by ``sepal paper``."""
