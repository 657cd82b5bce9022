"""The ``sepal`` command."""
