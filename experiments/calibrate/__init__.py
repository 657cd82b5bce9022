"""Finds the default rates: ``python -m experiments.calibrate``."""
