"""Profiles of devices: what is drawn, what is listed, what is refused, and the figures of the built-in ones."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from sepal.errors import ConfigError
from sepal.simulated_time import BUILT_IN, parse_profile, read_profile

PLAIN = "name = 'p'\nround-trip = 0.1\nspeed.median = 1e9\ndown.median = 2e6\nup.median = 1e6\n"
LINKS = "name = 'p'\ndown.median = 2e6\nup.median = 1e6\n"
CLASSES = "up.values = [1e6]\nup.shares = [1.0]"


def drawn(profile, count=1000, seed=0):
    return [profile.device(f"client-{number}", seed) for number in range(count)]


def test_a_client_has_the_same_device_in_every_run_of_a_seed_and_each_quantity_is_drawn_by_itself():
    phones = read_profile("phones")
    device = phones.device("client-00003", 1)
    assert device == phones.device("client-00003", 1)
    assert device != phones.device("client-00003", 2)
    assert device != phones.device("client-00004", 1)
    changed = phones.model_copy(update={"speed": phones.speed.model_copy(update={"sigma": 0.0})})
    other = changed.device("client-00003", 1)
    assert (other.down, other.up, other.speed) == (device.down, device.up, 1e9)
    assert len({one.device("client-00003", 1).speed for one in phones.draws(5)}) == 5
    assert phones.draws(5)[0] == phones


def test_the_draws_of_phones_have_the_figures_of_their_sources():
    """FLASH's WiFi: median 34.5 and 26.3 Mbit/s, σ .47 and .68, correlation .45; FedScale's σ = .6 of computation."""
    devices = drawn(read_profile("phones"))
    speed, down, up = (np.log([getattr(device, name) for device in devices]) for name in ("speed", "down", "up"))
    assert [math.exp(np.median(values)) for values in (speed, down, up)] == pytest.approx([1e9, 35e6, 26e6], rel=0.06)
    assert [values.std() for values in (speed, down, up)] == pytest.approx([0.6, 0.47, 0.68], rel=0.07)
    assert np.corrcoef(down, up)[0, 1] == pytest.approx(0.45, abs=0.06)
    assert abs(np.corrcoef(down, speed)[0, 1]) < 0.08


def test_the_classes_are_flashs_phones():
    """FLASH's CNN, multiply-adds of one example: convolutions 5×5 of 1 → 32 on 28×28 and 32 → 64 on 14×14, then 3136 →
    2048 → 62; backward takes two forward passes. A batch of 10 took 1,642, 588 and 179 ms.
    """
    forward = 28**2 * 25 * 32 + 14**2 * 25 * 32 * 64 + 7**2 * 64 * 2048 + 2048 * 62
    assert forward == 17_211_904
    classes = read_profile("phones-classes")
    measured = [3 * forward * 10 / (milliseconds / 1000) for milliseconds in (1642, 588, 179)]
    assert classes.speed.values == pytest.approx(measured, rel=0.015)
    speeds = [device.speed for device in drawn(classes)]
    shares = [speeds.count(value) / len(speeds) for value in classes.speed.values]
    assert shares == pytest.approx([0.53, 0.46, 0.01], abs=0.04)


def test_the_links_of_hospitals_rise_and_fall_together():
    devices = drawn(read_profile("hospitals"), 5)
    assert [device.down / device.up for device in devices] == pytest.approx([2.0] * 5)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_profile_says_where_its_figures_are_from_and_is_its_own_text(name):
    profile = read_profile(name)
    assert profile.name == name
    assert len(profile.about) > 100
    assert parse_profile(profile.text(), "again") == profile


def test_what_a_profile_lists_of_a_client_is_not_drawn():
    text = f"{PLAIN}[clients.a]\nstep-seconds = 0.5\nup = 5e5\n"
    profile = parse_profile(text, "devices")
    listed, other = profile.device("a", 0), profile.device("b", 0)
    assert (listed.speed, listed.step_seconds, listed.down, listed.up) == (0.0, 0.5, 2e6, 5e5)
    assert (other.speed, other.step_seconds, other.down, other.up) == (1e9, 0.0, 2e6, 1e6)
    assert not profile.varies
    assert profile.draws(5) == [profile]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{LINKS}speed.median = 5\n", "speed of at least 1000: multiply-adds a second, bits a second, bytes"),
        ("name = 'p'\nspeed.median = 1e9\nup.median = 1e6\ndown.median = 35\n", "down of at least 1000"),
        (f"{LINKS}step-seconds.median = 90000.0\n", "step-seconds of at most 86400"),
        (f"{LINKS}step-seconds.values = [1.0, 1e300]\nstep-seconds.shares = [0.5, 0.5]\n", "step-seconds of at most"),
        (f"{LINKS}speed.median = 1e9\nstep-seconds.median = 1.0\n", "speed or step-seconds, and not both"),
        ("name = 'p'\nspeed.values = [1e9, 2e9]\nspeed.shares = [0.5, 0.4]\n", "a share for each of values"),
        ("name = 'p'\nspeed.median = 1e9\nspeed.values = [1e9]\nspeed.shares = [1.0]\n", "or values with shares"),
        (f"{PLAIN}correlation = 0.5\n".replace("up.median = 1e6", CLASSES), "correlation 0, or log-normal down and up"),
        (f"latency = 3\n{PLAIN}", "latency: expected a known key"),
        (PLAIN.replace("'p'", "'a/b'"), "name: expected"),
        (f"{PLAIN}[clients.a]\nup = 3\n", "clients.a.up: expected greater than or equal to 1000"),
        ("name = ", "expected a TOML file"),
        (f"{LINKS}[clients.a]\nspeed = 1e9\n", "speed or step-seconds, and not both"),  # what of another client?
        (
            "name = 'p'\nspeed.median = 1e9\ndown.median = 1e6\n[clients.a]\nup = 5e5\n",
            "up: expected a value, got nothing",
        ),
        (
            "name = 'p'\nspeed.median = 1e9\nup.median = 1e6\n[clients.a]\ndown = 5e5\n",
            "down: expected a value, got nothing",
        ),
    ],
)
def test_what_is_no_profile_is_refused_by_its_key(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_profile(text, "devices")


def test_an_unknown_profile_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"devices: expected a file, or hospitals, phones.*did you mean phones"):
        read_profile("phone")
    with pytest.raises(ConfigError, match="devices: expected a file, or hospitals"):
        read_profile(str(tmp_path))


def test_the_example_of_the_page_is_a_profile():
    page = (Path(__file__).resolve().parents[3] / "docs/simulated-time.md").read_text()
    (example,) = [text for part in page.split("```toml\n")[1:] if "[speed]" in (text := part.partition("```")[0])]
    profile = parse_profile(example, "devices")
    assert profile.device("client-00003", 0).step_seconds == 0.21
    assert profile.device("client-00004", 0).memory == 4e9
