"""The papers' tables, run again: TOML plans beside this file, run by ``sepal paper``."""
