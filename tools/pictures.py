"""``make -C tools pictures``: the pictures of the pages, of `sepal compare examples/compare.toml` as it is today.

The table in the terminal, the frontier, and the report in a browser (``BROWSER``, by default chromium). Further
pictures of the report, on a phone and in the dark, go to build/pictures: they are to be looked at, and on no page.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
DOCS, LOOKED_AT = ROOT / "docs", ROOT / "build" / "pictures"
PLAN = "examples/compare.toml"
CURSOR = re.compile(r"\x1b\[(?:\?25[lh]|\d*[AK])|\r")
ELSEWHERE = re.compile(r",\s*url\([^)]*\) format\([^)]*\)")  # fonts of another host
WIDE, PHONE = (1200, 1248), (390, 1600)


def terminal(folder: Path) -> str:
    """Run the plan in ``folder`` and return what the terminal shows of its table, as SVG."""
    (folder / "examples").symlink_to(ROOT / "examples")
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    command = [str(Path(sys.executable).with_name("sepal")), "compare", PLAN]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8", check=True
    )
    table = CURSOR.sub("", done.stdout).partition("written to ")[0].rstrip()
    console = Console(record=True, width=80, file=StringIO())
    console.print(Text.from_ansi(table))
    return ELSEWHERE.sub("", console.export_svg(title=f"sepal compare {PLAN}", unique_id="compare"))


def photograph(browser: str, page: Path, size: tuple[int, int], picture: Path, dark: bool = False) -> None:
    """Write a picture of a page, as a screen of ``size`` pixels shows it."""
    options = ["--headless=new", "--disable-gpu", "--no-sandbox", "--hide-scrollbars"]
    options += ["--blink-settings=preferredColorScheme=0"] * dark
    with tempfile.TemporaryDirectory() as profile:
        width, height = size
        place = [f"--user-data-dir={profile}", f"--window-size={width},{height}", f"--screenshot={picture}"]
        subprocess.run([browser, *options, *place, page.as_uri()], check=True, capture_output=True, timeout=200)
    with Image.open(picture) as image:
        image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(picture, optimize=True)


def main() -> None:
    """Make all pictures."""
    browser = os.environ.get("BROWSER") or shutil.which("chromium") or ""
    if not browser:
        sys.exit("pictures: expected a browser, chromium on PATH or BROWSER, got none")
    with tempfile.TemporaryDirectory() as scratch:
        (DOCS / "compare.svg").write_text(terminal(Path(scratch)), encoding="utf-8")
        made = Path(scratch) / "runs" / "compare"
        shutil.copyfile(made / "frontier.svg", DOCS / "frontier.svg")
        LOOKED_AT.mkdir(parents=True, exist_ok=True)
        photograph(browser, made / "report.html", WIDE, DOCS / "report.png")
        photograph(browser, made / "report.html", PHONE, LOOKED_AT / "report-phone.png")
        photograph(browser, made / "report.html", WIDE, LOOKED_AT / "report-dark.png", dark=True)
    print("pictures: docs/compare.svg, docs/frontier.svg, docs/report.png; look also at those in build/pictures/")


if __name__ == "__main__":
    main()
