"""The ``sepal`` command, the in-process engine, comparisons and reports."""
