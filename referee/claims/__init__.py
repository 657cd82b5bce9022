"""What papers claim to send, what their public code sends, and what is sent here: ``python -m referee.claims``."""
