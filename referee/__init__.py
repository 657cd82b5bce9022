"""The referee: compares methods by leaderboard, default rates, papers' plans and stability, and keeps all its rows."""
