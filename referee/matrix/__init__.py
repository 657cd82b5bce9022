"""Which kinds of model run with which method: docs/models-and-methods.md, made by `python -m referee.matrix`."""
