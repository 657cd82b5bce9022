"""The leaderboard, a designed comparison: ``python -m experiments.leaderboard``."""
