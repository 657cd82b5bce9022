"""What a client's work takes, and when a round ends: the worked example, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.simulated_time import ClientWork, SimulatedDevice, end_of_round, seconds, training_work

SMALL = 248_024  # bytes of 62,006 float32
RESNET = 44_695_848
# Three clients: steps of a round; ms of one example's forward pass; kbit/s down and up. A step is 10 examples, forward
# once and backward twice: 3 · 10 · ms.
CLIENTS = {"A": (40, 5, 20_000, 8_000), "B": (20, 10, 10_000, 5_000), "C": (80, 30, 4_000, 1_000)}


def example(down=SMALL, up=SMALL):
    works, rates = [], []
    for steps, milliseconds, kbit_down, kbit_up in CLIENTS.values():
        works.append(ClientWork(down, up, 2, 123.0, steps))
        step = 3 * 10 * milliseconds / 1000
        rates.append(SimulatedDevice(0.0, step, 1000 * kbit_down, 1000 * kbit_up, 0.0).rates)
    return dict(zip(CLIENTS, seconds(np.array(works, float), np.array(rates)), strict=True))


def test_the_seconds_of_three_clients():
    """A: 40 · .15 + 8 · 248,024 · (1/20e6 + 1/8e6) = 6 + .0992 + .2480. B: 6 + .1984 + .3968. C: 72 + .496 + 1.9842."""
    assert example() == pytest.approx({"A": 6.3472, "B": 6.5953, "C": 74.4802}, abs=5e-5)


def test_a_tenth_of_the_upload_pays_where_links_rule():
    """The small CNN: 74.4802/72.6945 = 1.02. ResNet18: 518.96/197.15 = 2.63."""
    small, resnet = example(up=24_802), (example(RESNET, RESNET), example(RESNET, RESNET // 10))
    assert max(small.values()) == pytest.approx(72.6945, abs=5e-5)
    assert max(example().values()) / max(small.values()) == pytest.approx(1.02, abs=0.005)
    assert list(resnet[0].values()) == pytest.approx([68.57, 113.27, 518.96], abs=5e-3)
    assert list(resnet[1].values()) == pytest.approx([28.35, 48.91, 197.15], abs=5e-3)
    assert resnet[0]["C"] / resnet[1]["C"] == pytest.approx(2.63, abs=0.005)


@pytest.mark.parametrize(
    ("how", "end", "counted"),
    [
        ({"needed": 3}, 74.4802, "ABC"),  # wait for all
        ({"needed": 2}, 6.5953, "AB"),  # the first two of three
        ({"needed": 3, "deadline": 60.0, "least": 2}, 60.0, "AB"),  # the server cannot know that C is too late
        ({"needed": 2, "deadline": 60.0}, 6.5953, "AB"),  # enough before the deadline
        ({"needed": 3, "deadline": 75.0}, 74.4802, "ABC"),
        ({"needed": 3, "deadline": 1.0, "least": 2}, 6.5953, "AB"),  # the deadline waits for min-replies
        ({"needed": 2, "deadline": 6.4}, 6.4, "A"),
        ({"needed": 4, "deadline": 90.0}, 90.0, "ABC"),  # a fourth may still come
        ({"needed": 4}, 74.4802, "ABC"),
    ],
)
def test_when_a_round_ends_and_who_counts(how, end, counted):
    done = end_of_round(example(), **how)
    assert done.seconds == pytest.approx(end, abs=5e-5)
    assert (done.counted, done.late) == (tuple(counted), tuple(sorted({*"ABC"} - {*counted})))


def test_ties_are_broken_by_name_and_an_empty_round_takes_its_deadline():
    assert end_of_round({"b": 1.0, "a": 1.0, "c": 0.5}, 2).counted == ("a", "c")
    assert (end_of_round({}, 2).seconds, end_of_round({}, 2, 9.0).seconds) == (0.0, 9.0)


def test_a_speed_counts_multiply_adds_and_each_message_has_its_round_trip():
    """2e9/1e9 s, 8 · 1000/8e3 s down, 8 · 500/4e3 s up, two messages of .25 s."""
    device = SimulatedDevice(1e9, 0.0, 8e3, 4e3, 0.25)
    work = np.array([ClientWork(1000, 500, 2, 2e9, 7)], float)
    assert seconds(work, device.rates[None]) == pytest.approx([2 + 1 + 1 + 0.5])


def test_the_work_of_a_round_is_that_of_its_training_and_an_order_sent_twice_counts_once():
    def row(client, direction, payload, purpose="training", status="accepted"):
        return {"client": client, "purpose": purpose, "direction": direction, "payload": payload, "status": status}

    rows = [row("a", "down", 10), row("a", "down", 10), row("a", "up", 4), row("b", "down", 10, "evaluation")]
    rows += [row("c", "down", 10), row("c", "up", 0, status="missing"), row("d", "down", 90, status="undone")]
    figures = {"a": {"multiply-adds": 3.0, "steps": 2.0}, "b": {"multiply-adds": 3.0}}
    assert training_work(rows, figures) == {"a": ClientWork(10, 4, 2, 3.0, 2.0)}
