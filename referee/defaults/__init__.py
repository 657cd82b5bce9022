"""Checks that every method learns with its default keys: ``make -C referee defaults``."""
