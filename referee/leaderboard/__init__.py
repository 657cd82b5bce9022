"""The leaderboard, a designed comparison: ``python -m referee.leaderboard``."""
