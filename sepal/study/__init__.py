"""Runs, plans of runs, and their figures: what commands and Python share, without a terminal."""
