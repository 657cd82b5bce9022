"""``sepal report``: one HTML file for a run or a comparison. It opens offline; needs the extra ``report``."""

from sepal.cli.report.page import render, write_html

__all__ = ["render", "write_html"]
