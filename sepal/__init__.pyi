from sepal.api import compare as compare
from sepal.api import load as load
from sepal.api import own as own
from sepal.api import run as run

__version__: str
