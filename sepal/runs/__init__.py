"""The run directory: who writes it, and who reads it. Whoever opens a stored run comes through here."""
