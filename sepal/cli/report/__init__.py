"""``sepal report``: one HTML file for a run or a comparison, and the frontier as a picture. Needs the extra."""

from sepal.cli.report.page import render, write_html, write_picture

__all__ = ["render", "write_html", "write_picture"]
