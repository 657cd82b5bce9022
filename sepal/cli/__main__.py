"""Entry point of the ``sepal`` command, also as ``python -m sepal.cli``."""

from sepal.cli.main import main

if __name__ == "__main__":
    main()
