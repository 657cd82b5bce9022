"""What the pictures of the leaderboard share: marks, names, texts, and the way to an SVG that is read on a phone, too.

A picture is as wide as README's column, and its letters are large enough to be read where it is shown at half of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from textwrap import wrap
from typing import Any, TypeAlias

import altair as alt

from referee.leaderboard.styles import GREY, GROUND, INK, ContenderStyle
from sepal.report.figure import VEGA_LITE
from sepal.report.frontier import CONFIG, coloured

SMALL, LARGE, TITLE = 20, 21, 25  # pixels of letters
LETTERS = 52  # of a line of a title
FONTS: dict[str, Any] = {
    **CONFIG,
    "axis": {**CONFIG["axis"], "labelFontSize": SMALL, "titleFontSize": SMALL, "titleColor": INK, "labelColor": INK},
    "title": {**CONFIG["title"], "fontSize": TITLE, "subtitleFontSize": SMALL, "subtitleColor": "var(--ink)"},
}
Rows: TypeAlias = Sequence[Mapping[str, Any]]


def colours(styles: Mapping[str, ContenderStyle], of_words: bool = False) -> alt.Scale:
    """Return the colours by ``key``; words of what is grey are in ink, which is read better."""
    names = [INK if of_words and style.colour == GREY else style.colour for style in styles.values()]
    return alt.Scale(domain=list(styles), range=names)


def stroke_of(styles: Mapping[str, ContenderStyle]) -> alt.Stroke:
    """Return the colour of lines by the rows' ``key``."""
    return alt.Stroke("key:N", legend=None, scale=colours(styles))


def colour_of_words(styles: Mapping[str, ContenderStyle]) -> alt.Color:
    """Return the colour of words by the rows' ``key``."""
    return alt.Color("key:N", legend=None, scale=colours(styles, of_words=True))


def marks(data: alt.Chart, styles: Mapping[str, ContenderStyle], size: int = 150, outlined: bool = False) -> alt.Chart:
    """Return a chart of marks in the styles of the rows' ``key``, or of their outlines only."""
    keys = list(styles)
    fill = alt.Scale(domain=keys, range=[style.colour if style.filled else GROUND for style in styles.values()])
    shape = alt.Scale(domain=keys, range=[style.shape for style in styles.values()])
    filling: Any = alt.value(GROUND) if outlined else alt.Fill("key:N", scale=fill, legend=None)
    chart: alt.Chart = data.mark_point(size=size, opacity=1, strokeWidth=2).encode(
        stroke_of(styles), alt.Shape("key:N", scale=shape, legend=None), fill=filling
    )
    return chart


def named_text(
    data: alt.Chart, styles: Mapping[str, ContenderStyle], x: Any, y: Any, **keys: Any
) -> Iterator[alt.Chart]:
    """Yield the rows' ``name`` in the colour of their ``key``, on a ground that hides lines behind it."""
    words = {"fontSize": LARGE, "fontWeight": 600, "baseline": "middle", **keys}
    yield data.mark_text(**words, stroke=GROUND, strokeWidth=5).encode(x, y, alt.Text("name:N"))
    yield data.mark_text(**words).encode(x, y, colour_of_words(styles), alt.Text("name:N"))


def text(words: str, x: float, y: float, colour: str = INK, align: Any = "left") -> alt.Chart:
    """Return words at (x, y) of a panel, in pixels from its upper left corner."""
    data = alt.Chart(alt.InlineData(values=[{}]))
    look: Any = {"fontSize": LARGE, "fontWeight": 600, "baseline": "middle", "align": align, "color": colour}
    chart: alt.Chart = data.mark_text(text=words, **look).encode(x=alt.value(x), y=alt.value(y))
    return chart


def heading(words: str, anchor: Any = "middle") -> alt.TitleParams:
    """Return the title of a panel; line breaks in ``words`` separate its lines."""
    return alt.TitleParams(words.split("\n"), fontSize=SMALL, anchor=anchor, color=INK, fontWeight=600)


def signed(value: float, digits: int = 1) -> str:
    """Return a number with its sign: ``−2.0``."""
    return f"{value:+.{digits}f}".replace("-", "−")


def svg(chart: Any, title: str, reading: Sequence[str], spoken: str) -> str:
    """Return a chart as SVG that follows the reader's light or dark settings; needs the extra ``report``.

    Args:
        chart: The chart.
        title: The finding.
        reading: Lines that say how to read it.
        spoken: What it shows, for those who do not see it.
    """
    import vl_convert

    above = alt.TitleParams(
        wrap(title, LETTERS, break_on_hyphens=False),
        subtitle=list(reading),
        anchor="start",
        offset=14,
        subtitlePadding=8,
    )
    spec = chart.properties(title=above).to_dict(validate=True)
    drawn: str = vl_convert.vegalite_to_svg({**spec, "config": FONTS, "padding": 8}, vl_version=VEGA_LITE)
    return coloured(drawn.replace("<svg ", f'<svg role="img" aria-label="{escape(spoken)}" ', 1))
