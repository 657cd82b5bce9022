"""Finds the default rates: ``python -m referee.calibrate``."""
