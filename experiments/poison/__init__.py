"""What the options against poisoned uploads are worth: ``python -m experiments.poison``."""
