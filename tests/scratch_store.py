"""A client's states for tests: on disk, as in a deployment."""

from sepal.study.method_checks.cases import ScratchStore

__all__ = ["ScratchStore"]
