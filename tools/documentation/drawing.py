"""Draws the graph of packages as SVG, in the colours of the page: Mermaid would come from another host."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

BLOCK = re.compile(r"^```mermaid\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
EDGE = re.compile(r"^ *(\w+) --> (\w+)$", re.MULTILINE)
WIDTH, HEIGHT, GAP_X, GAP_Y = 130, 30, 40, 34


def with_drawings(text: str) -> str:
    """Return a page with each Mermaid graph replaced by a drawing."""
    return BLOCK.sub(lambda match: svg(EDGE.findall(match[1])), text)


def svg(edges: Sequence[tuple[str, str]]) -> str:
    """Return the drawing of a graph without cycles; arrows point down.

    Args:
        edges: (from, to).
    """
    levels = _levels(edges)
    rows: dict[int, list[str]] = defaultdict(list)
    for node, level in levels.items():
        rows[level].append(node)
    widest = max(map(len, rows.values())) * (WIDTH + GAP_X) + 2 * GAP_X
    at = {}
    for level, nodes in rows.items():
        start = (widest - len(nodes) * (WIDTH + GAP_X) + GAP_X) / 2
        for place, node in enumerate(nodes):
            at[node] = (start + place * (WIDTH + GAP_X), level * (HEIGHT + GAP_Y) + 4)
    parts = [_arrow(at[a], at[b], levels[b] - levels[a], widest) for a, b in edges]
    parts += [
        f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="4" fill="none" stroke="currentColor"/>'
        f'<text x="{x + WIDTH / 2:g}" y="{y + 20:g}" text-anchor="middle" fill="currentColor">{node}</text>'
        for node, (x, y) in at.items()
    ]
    height = (max(rows) + 1) * (HEIGHT + GAP_Y) - GAP_Y + 8
    names = "; ".join(f"{a} may import {b}" for a, b in edges)
    head = '<marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
    head += '<path d="M0 0L8 4L0 8z" fill="currentColor"/></marker>'
    size = f'viewBox="0 0 {widest:g} {height}" width="{widest:g}" style="max-width:100%"'
    begin = f'<svg {size} role="img" font-size="13">'
    return f"\n{begin}<title>{names}</title><defs>{head}</defs>{''.join(parts)}</svg>\n\n"


def _levels(edges: Sequence[tuple[str, str]]) -> Mapping[str, int]:
    """Return each node's row: as low as the longest path from it to the bottom allows."""
    above = dict.fromkeys((node for edge in edges for node in edge), 0)
    for _ in above:
        for a, b in edges:
            above[a] = max(above[a], above[b] + 1)
    return {node: max(above.values()) - height for node, height in above.items()}


def _arrow(a: tuple[float, float], b: tuple[float, float], rows: int, widest: float) -> str:
    """Return an arrow; one that passes a row goes round it, on the right where both ends are above each other."""
    x, y, u, v = a[0] + WIDTH / 2, a[1] + HEIGHT, b[0] + WIDTH / 2, b[1] - 1
    path = f"M{x:g} {y:g}L{u:g} {v:g}"
    if rows > 1 and abs(u - x) > WIDTH / 2:
        path = f"M{a[0] + WIDTH * (u > x):g} {a[1] + HEIGHT / 2:g}H{u:g}V{v:g}"
    elif rows > 1:
        side = min(a[0] + WIDTH + GAP_X, widest - 8)
        path = f"M{a[0] + WIDTH:g} {a[1] + HEIGHT / 2:g}H{side:g}V{b[1] + HEIGHT / 2:g}H{b[0] + WIDTH + 1:g}"
    return f'<path d="{path}" fill="none" stroke="currentColor" marker-end="url(#tip)"/>'
