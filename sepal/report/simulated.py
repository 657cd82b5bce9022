"""What a comparison says of simulated hours: how they are made, where two variants break even, and who is slow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sepal.report.text_tables import NONE, TextTable, aim
from sepal.simulated_time import DeviceProfile
from sepal.study.break_even import GRID, break_even
from sepal.study.results import Variant
from sepal.study.simulated_time import ONE_DRAW, PARTS

IN = (
    "Counted payload bytes, counted multiply-adds of training, and a round trip for each message; the slowest client "
    "makes the round. Evaluation, failures, pauses and the server take no time."
)


def profiles(variants: Sequence[Variant]) -> list[DeviceProfile]:
    """Return the different profiles by which the hours of variants are simulated."""
    by_text = {profile.text(): profile for variant in variants if (profile := variant.profile)}
    return list(by_text.values())


def simulated_words(variants: Sequence[Variant]) -> Iterator[str]:
    """Yield what is to be said of a cell's simulated hours; nothing for runs without a profile."""
    shown = profiles(variants)
    if not shown:
        return
    spread, draws = "", variants[0].draws
    if any(profile.varies for profile in shown):
        spread = f", over seeds and {draws} draws of the devices, of which the thirds are of the first"
        if draws == ONE_DRAW:
            spread = ", over seeds and one draw of the devices, that by which runs were executed"
    yield f"Simulated hours{spread}, by {'; by '.join(profile.described() for profile in shown)}. {IN}"
    for variant in variants:
        if why := variant.why_no_hours:
            yield f"{variant.label}: no simulated hours: {why}."
    yield from _without_room(variants)
    undone = [variant.label for variant in variants if any(result.times.undone for result in variant.results)]
    if undone:
        yield f"{', '.join(undone)}: the hours are without the rounds that were undone."
    if len(shown) == 1:
        reference, *rivals = variants
        yield from filter(None, (_break_even(reference, rival) for rival in rivals))


def _without_room(variants: Sequence[Variant]) -> Iterator[str]:
    for variant in variants:
        profile = variant.profile
        lacking = [name for r in variant.results[:1] if profile for name in r.times.without_room(profile)]
        if lacking:
            some = ", ".join(lacking[:3]) + ", …" * (len(lacking) > 3)
            words = f"{len(lacking)} clients have less memory than weights and gradients of the whole model take"
            yield f"{variant.label}: {words}: {some}."


def _break_even(reference: Variant, rival: Variant) -> str:
    """Return at which links two variants take the same time, as a sentence; "" if that is not known."""
    crossing = break_even(reference, rival)
    if crossing is None:
        return ""
    what = f"to {aim([reference])} ({reference.view})" if crossing.to_target else "to the end"
    sooner = crossing.slower_links
    if crossing.links is None:
        later = rival if sooner is reference else reference
        return (
            f"{sooner.label} is sooner {what} than {later.label} with links {GRID[0]:g} to {GRID[-1]:g} times as fast."
        )
    words = (
        f"{reference.label} and {rival.label} take the same time {what} with links {crossing.links:.3g} times as fast"
    )
    return f"{words}; with slower ones {sooner.label} is sooner."


def speed_table(variants: Sequence[Variant]) -> TextTable:
    """Return deployed accuracy, and the share of the examples in the means, by thirds of the clients' devices."""
    rows = []
    for variant in variants:
        cells = []
        for part in PARTS:
            accuracies, shares = [], []
            for result in variant.results:
                profile = variant.profile
                names = result.times.parts(profile).get(part, []) if profile and not variant.why_no_hours else []
                clients = result.clients(variant.deployed or "trained")
                some = [clients[name] for name in names if name in clients]
                total = sum(result.times.examples.values())
                if some and total:
                    accuracies.append(sum(some) / len(some))
                    shares.append(sum(result.times.examples.get(name, 0.0) for name in names) / total)
            measure = variant.measure
            cells.append(measure.number(sum(accuracies) / len(accuracies)) if accuracies else NONE)
            cells.append(f"{100 * sum(shares) / len(shares):.0f}" if shares else NONE)
        rows.append([variant.label, *cells])
    heads = [head for part in PARTS for head in (f"{part}\ndevices", "% of\nexamples")]
    table = TextTable((f"{variants[0].measure.axis} of deployed models", *heads), rows)
    return table if any(cell != NONE for row in rows for cell in row[1:]) else TextTable(table.head, [])
