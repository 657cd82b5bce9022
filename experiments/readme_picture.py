"""README's picture: accuracy of the deployed model against megabytes, as SVG for light and for dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import mean, stdev

from experiments.leaderboard.readme import PAPERS
from experiments.readme import NAMES, Figures


@dataclass(frozen=True)
class Palette:
    """Colours on one kind of page."""

    text: str
    faint: str
    ours: str
    others: str


PALETTES = {
    "light": Palette("#1f2328", "#d1d9e0", "#00796b", "#59636e"),
    "dark": Palette("#f0f6fc", "#3d444d", "#4db6ac", "#9198a1"),
}
WIDTH, HEIGHT = 800, 440
LEFT, RIGHT, TOP, BOTTOM = 50, 104, 62, 56
LEAST, MOST = 92.0, 98.6  # of the axis of accuracy; what is below is drawn at its foot, with its figure
ROUNDS = 24  # of the runs
# Where a label stands: (x, y, anchor) from its point; by default on the right.
LABELS = {
    "fedavg-ft": (-44, -14, "start"),
    "fedpse": (-12, 4, "end"),
    "dmpfl": (-12, 4, "end"),
    "subfedavg": (-12, 4, "end"),
    "fedper": (-10, 18, "end"),
}
SIZES = (0.1, 0.3, 1, 3, 10)


def _x(megabytes: float) -> float:
    """Return a size's place on the logarithmic axis."""
    low, high = math.log(0.08), math.log(11)
    return LEFT + (WIDTH - LEFT - RIGHT) * (math.log(megabytes) - low) / (high - low)


def _y(accuracy: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (MOST - accuracy) / (MOST - LEAST)


def svg(found: Mapping[str, Figures], palette: Palette) -> str:
    """Return the picture. Local, which sends nothing, is a line."""
    clients = "30 people, three seeds, each method at the rate that validation chose"
    title = "Accuracy of the deployed model and MB per client on HAR"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" '
        f'font-size="15" fill="{palette.text}"><title>{title}: {clients}</title>',
        _text(8, 20, "Accuracy of the deployed model, %", palette.text, bold=True),
        _text(8, 42, f"HAR: {clients}", palette.others),
        *_axes(palette),
        *_local(found["local"], palette),
    ]
    for method, figures in found.items():
        if method != "local":
            parts += _point(figures, palette)
    return "\n".join((*parts, "</svg>")) + "\n"


def _axes(palette: Palette) -> Iterator[str]:
    for accuracy in range(math.ceil(LEAST), math.floor(MOST) + 1):
        yield _line(LEFT, _y(accuracy), WIDTH - RIGHT, _y(accuracy), palette.faint)
        yield _text(LEFT - 8, _y(accuracy) + 4, str(accuracy), palette.others, "end")
    for size in SIZES:
        yield _line(_x(size), HEIGHT - BOTTOM, _x(size), HEIGHT - BOTTOM + 5, palette.others)
        yield _text(_x(size), HEIGHT - BOTTOM + 20, f"{size:g}", palette.others, "middle")
    name = f"MB per client, up and down, in {ROUNDS} rounds (logarithmic)"
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, name, palette.others, "middle")


def _local(local: Figures, palette: Palette) -> Iterator[str]:
    level = mean(local.accuracy.values())
    yield _line(LEFT, _y(level), WIDTH - RIGHT, _y(level), palette.others, dashes="5 4")
    yield _text(LEFT + 6, _y(level) - 6, f"Local, sends nothing: {level:.1f}", palette.others)


def _point(figures: Figures, palette: Palette) -> Iterator[str]:
    """Yield a method's point, its standard deviation over seeds, and its name."""
    level, spread = mean(figures.accuracy.values()), stdev(figures.accuracy.values())
    ours = figures.method in PAPERS
    colour, name = palette.ours if ours else palette.others, NAMES[figures.method]
    right, down, anchor = LABELS.get(figures.method, (10, 4, "start"))
    x, y = _x(figures.sent), _y(max(level, LEAST))
    label = f"{name} {level:.1f}" if level >= LEAST else f"{name} {level:.1f}, far below ↓"
    if level >= LEAST:
        yield _line(x, _y(min(level + spread, MOST)), x, _y(max(level - spread, LEAST)), colour)
    tip = f"<title>{name}: {level:.2f} ± {spread:.2f} %, {figures.sent:.3f} MB</title>"
    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{6 if ours else 5}" fill="{colour}">{tip}</circle>'
    yield _text(x + right, y + down, label, colour, anchor, bold=ours)


def _line(x: float, y: float, u: float, v: float, colour: str, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="M{x:.1f} {y:.1f}L{u:.1f} {v:.1f}" stroke="{colour}"{dashed}/>'


def _text(x: float, y: float, words: str, colour: str, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}"{weight}>{words}</text>'
