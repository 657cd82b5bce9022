"""What the options against poisoned uploads are worth: ``python -m referee.poison``."""
