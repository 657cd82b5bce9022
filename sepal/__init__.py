"""Sepal: personalized, sparse federated learning on Flower.

The folders ``cli``, ``study``, ``engines``, ``server_app``, ``client_app``, ``strategies`` and ``models`` stand at the
top of the repository, and are packages of this one: links in a checkout, directories in an installation.
"""

from pathlib import Path

__version__ = "0.1.0"

if not (Path(__file__).parent / "strategies").is_dir():  # a Flower app bundle, or a checkout without links
    __path__.append(str(Path(__file__).parents[1]))
