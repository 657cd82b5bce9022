"""The designed comparison: ``python -m experiments.leaderboard``."""
