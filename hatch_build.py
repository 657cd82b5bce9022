"""What pyproject.toml cannot say of the package once: links that begin with the repository's address and the version.

A package index shows README.md alone, where a link to a file beside it is dead. Hatchling runs this when it builds, and
hatch-fancy-pypi-readme does the work.
"""

from __future__ import annotations

from typing import Any

from hatch_fancy_pypi_readme import hooks
from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = {"Homepage": "", "Documentation": "/blob/{tag}/docs/tutorial.md", "Changelog": "/blob/{tag}/CHANGELOG.md"}
PAGES |= {"Issues": "/issues", "Source": "/tree/{tag}"}
PICTURE = r"(!\[[^\]]*\]\()(?!https?:)"
LINK = r"(\]\()(?!https?:|#)"


class AddressHook(MetadataHookInterface):
    """Adds ``urls``, and ``readme`` with absolute links, from ``address`` in pyproject.toml."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in both fields of ``metadata``, the ``[project]`` table."""
        address, tag = self.config["address"], f"v{metadata['version']}"
        metadata["urls"] = {name: address + page.format(tag=tag) for name, page in PAGES.items()}
        readme = {
            "content-type": "text/markdown",
            "fragments": [{"path": "README.md"}],
            "substitutions": [
                {"pattern": PICTURE, "replacement": rf"\1{address}/raw/{tag}/"},
                {"pattern": LINK, "replacement": rf"\1{address}/blob/{tag}/"},
            ],
        }
        hooks.FancyReadmeMetadataHook(self.root, readme).update(metadata)
