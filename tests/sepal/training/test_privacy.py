"""Clipping and noise of one update."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.config import PrivacySettings
from sepal.errors import ModelError
from sepal.training.privacy import BLOCK, clip, gaussian, release

KEY = b"k" * 32
SETTINGS = PrivacySettings(clip=2.0, noise=0.5)


def vector(*values):
    return np.array(values, np.float32)


# ‖(3, 4)‖ = 5: to 1 it is scaled by 1/5, to 2.5 by 1/2; 5 and more leave it as it is.
@pytest.mark.parametrize(
    ("most", "expected"), [(1.0, (0.6, 0.8)), (2.5, (1.5, 2.0)), (5.0, (3.0, 4.0)), (6.0, (3.0, 4.0))]
)
def test_clipping_by_hand(most, expected):
    np.testing.assert_allclose(clip(vector(3, 4), most), expected, rtol=1e-15)


def test_nothing_is_clipped_to_nothing():
    assert clip(vector(0, 0), 1.0).tolist() == [0, 0]
    assert clip(vector(), 1.0).size == 0


def test_a_large_update_is_clipped_in_float64_and_one_that_is_not_finite_is_refused():
    """3e38² is beyond float32."""
    np.testing.assert_allclose(np.linalg.norm(clip(vector(3e38, 3e38), 1.0)), 1.0, rtol=1e-12)
    for bad in (np.inf, -np.inf, np.nan):
        with pytest.raises(ModelError, match="update: expected finite entries"):
            clip(vector(1, bad), 1.0)


def test_with_noise_an_update_that_is_not_finite_is_taken_as_zero():
    for bad in (np.inf, np.nan):
        assert release(vector(1, bad), SETTINGS, KEY, 1).clipped.tolist() == [0, 0]


def test_without_noise_the_update_is_only_clipped():
    released = release(vector(3, 4), PrivacySettings(clip=1.0), KEY, 1)
    assert released.noised.tobytes() == released.clipped.tobytes() == vector(0.6, 0.8).tobytes()


def test_the_numbers_are_standard_normal():
    """Mean, variance, fourth moment and two tails of 10⁶ numbers, each within five standard errors."""
    n = 10**6
    x = gaussian(KEY, n)
    assert abs(x.mean()) < 5 / np.sqrt(n)
    assert abs(x.var() - 1) < 5 * np.sqrt(2 / n)
    assert abs((x**4).mean() - 3) < 5 * np.sqrt(96 / n)
    for limit, share in ((1.0, 0.317311), (3.0, 0.002700)):
        assert abs((np.abs(x) > limit).mean() - share) < 5 * np.sqrt(share * (1 - share) / n)
    for apart in (1, BLOCK // 2, BLOCK):  # neighbours, the two of a pair, blocks
        assert abs(np.corrcoef(x[:-apart], x[apart:])[0, 1]) < 5 / np.sqrt(n - apart), apart
    assert np.unique(x).size == n


def test_the_numbers_are_those_of_their_key():
    assert gaussian(KEY, 7).tobytes() == gaussian(KEY, 7).tobytes()
    assert gaussian(KEY, 7).size == 7
    assert gaussian(KEY, 0).size == 0
    assert gaussian(KEY, BLOCK + 3).size == BLOCK + 3
    assert abs(np.corrcoef(gaussian(KEY, 10_000), gaussian(b"l" * 32, 10_000))[0, 1]) < 0.05


def test_the_noise_is_the_multiplier_times_the_clip():
    update = np.zeros(100_000, np.float32)
    noise = release(update, SETTINGS, KEY, 1).noised
    assert noise.std() == pytest.approx(1.0, rel=0.02)
    assert release(update, PrivacySettings(clip=4.0, noise=0.5), KEY, 1).noised.std() == pytest.approx(2.0, rel=0.02)


def test_an_update_that_is_sent_again_has_the_same_noise():
    update = gaussian(b"u", 1000).astype(np.float32)
    assert release(update, SETTINGS, KEY, 3).noised.tobytes() == release(update, SETTINGS, KEY, 3).noised.tobytes()


def test_the_difference_of_two_uploads_never_cancels_the_noise():
    """One entry changed by one bit, another round, another key, clip or multiplier: the noise is independent."""
    update = gaussian(b"u", 10_000).astype(np.float32)
    changed = update.copy()
    changed[17] = np.nextafter(changed[17], np.float32(1))

    def noise(update, settings=SETTINGS, key=KEY, round=3, request=b""):
        released = release(update, settings, key, round, request)
        return (released.noised - released.clipped) / (settings.noise * settings.clip)

    first = noise(update)
    others = [
        noise(changed),
        noise(update, round=4),
        noise(update, key=b"l" * 32),
        noise(update, request=b"another download"),
        noise(update, PrivacySettings(clip=2.5, noise=0.5)),
        noise(update, PrivacySettings(clip=2.0, noise=0.6)),
    ]
    for again in others:
        assert abs(np.corrcoef(first, again)[0, 1]) < 0.05
