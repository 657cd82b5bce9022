"""How a contender looks in every picture of the leaderboard: its name, colour and mark.

The five papers' methods have a colour each; baselines are grey. Each has a mark of its own, so that they are told
apart without colour, too. Colours are names of the report's, which has one of each for light and dark grounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sepal.report.shapes import SHAPES

INK, GREY, GROUND, LINE = "var(--ink)", "var(--muted)", "var(--card)", "var(--line)"


class ContenderStyle(NamedTuple):
    """How one contender is drawn.

    Attributes:
        name: Its name in pictures.
        colour: The name of its colour.
        shape: Its mark, an SVG path.
        filled: Whether the mark is filled, or an outline.
    """

    name: str
    colour: str
    shape: str
    filled: bool = True


PAPERS: Mapping[str, ContenderStyle] = {
    "fedpse": ContenderStyle("FedPSE", "var(--c0)", SHAPES[0]),
    "dmpfl": ContenderStyle("DM-PFL", "var(--c1)", SHAPES[1]),
    "subfedavg": ContenderStyle("Sub-FedAvg", "var(--c2)", SHAPES[2]),
    "pfedgate": ContenderStyle("pFedGate", "var(--c3)", SHAPES[3]),
    "pa3dfl": ContenderStyle("Pa3dFL", "var(--c4)", SHAPES[4]),
    "pa3dfl-position": ContenderStyle("… by position", "var(--c4)", SHAPES[4], filled=False),
}
BASELINES: Mapping[str, ContenderStyle] = {
    "fedavg-ft-stc": ContenderStyle("Compressed FT", GREY, SHAPES[0]),
    "fedavg-ft": ContenderStyle("Fine-tuning", GREY, SHAPES[1]),
    "fedavg": ContenderStyle("FedAvg", GREY, SHAPES[2]),
    "fedstc": ContenderStyle("FedSTC", GREY, SHAPES[5]),
    "local": ContenderStyle("Local", GREY, SHAPES[3]),
    "ditto": ContenderStyle("Ditto", GREY, SHAPES[4]),
    "fedper": ContenderStyle("FedPer", GREY, SHAPES[0], filled=False),
    "fedrep": ContenderStyle("FedRep", GREY, SHAPES[1], filled=False),
    "feddst": ContenderStyle("FedDST", GREY, SHAPES[2], filled=False),
    "heterofl": ContenderStyle("HeteroFL", GREY, SHAPES[3], filled=False),
    "fedrolex": ContenderStyle("FedRolex", GREY, SHAPES[5], filled=False),
    "flanc": ContenderStyle("FLANC", GREY, SHAPES[6]),
}
SAME = {"fedavg-ft-narrow": "fedavg-ft", "fedavg-narrow": "fedavg", "local-width": "local", "local-each-round": "local"}
STYLES: Mapping[str, ContenderStyle] = {
    **PAPERS,
    **BASELINES,
    **{name: BASELINES[baseline] for name, baseline in SAME.items()},
}
