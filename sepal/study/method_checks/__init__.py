"""What every method must do, whoever wrote it: the checks of ``sepal check-method`` and of the project's own tests.

Four rounds on handwritten digits with four clients, two of them sampled each round, and everything asked of the method
from outside: no check knows a method by name. :mod:`.cases` runs a method, :mod:`.checks` asks.
"""

from sepal.study.method_checks.cases import Case
from sepal.study.method_checks.checks import CHECKS, CheckError
from sepal.study.method_checks.reasons import reason_of

__all__ = ["CHECKS", "Case", "CheckError", "reason_of"]
