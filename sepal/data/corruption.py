"""Corruptions of test images: those of CIFAR-10-C that need no image library.

Hendrycks and Dietterich, ICLR 2019 (https://arxiv.org/abs/1903.12261), with the strengths for 32×32 images. Deviations:
brightness is added to every channel instead of to the value in HSV, and pixelation uses block means instead of
box-filtered resizing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sepal.data.examples import DatasetInfo

Images: TypeAlias = NDArray[np.float32]

STRENGTH: dict[str, tuple[float, float, float, float, float]] = {
    "gaussian-noise": (0.04, 0.06, 0.08, 0.09, 0.10),  # standard deviation
    "shot-noise": (500, 250, 100, 75, 50),  # photons of a white pixel
    "impulse-noise": (0.01, 0.02, 0.03, 0.05, 0.07),  # fraction of values set to black or white
    "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),  # added
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),  # factor on the distance from the image's mean
    "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),  # side of the coarse image over the side
}


def corrupt(x: NDArray[Any], info: DatasetInfo, name: str, severity: int, rng: np.random.Generator) -> Images:
    """Return corrupted images.

    Args:
        x: Normalised images, float32 (n, channels, height, width).
        info: Metadata with the normalisation constants.
        name: One of :data:`STRENGTH`.
        severity: 1 to 5.
        rng: Generator; derive it from the client, so that all methods see the same noise.

    Returns:
        float32, normalised as ``x``; pixels are clipped to [0, 1] before.
    """
    mean, std = (np.asarray(v, np.float32).reshape(1, -1, 1, 1) for v in (info.mean, info.std))
    pixels = np.asarray(x, np.float32) * std + mean
    changed = _FUNCTIONS[name](pixels, STRENGTH[name][severity - 1], rng)
    normalised: Images = ((np.clip(changed, 0, 1) - mean) / std).astype(np.float32)
    return normalised


def _gaussian(pixels: Images, strength: float, rng: np.random.Generator) -> NDArray[Any]:
    return np.asarray(pixels + strength * rng.standard_normal(pixels.shape, np.float32), np.float32)


def _shot(pixels: Images, strength: float, rng: np.random.Generator) -> NDArray[Any]:
    return np.divide(rng.poisson(np.clip(pixels, 0, 1) * strength), strength)


def _impulse(pixels: Images, strength: float, rng: np.random.Generator) -> NDArray[Any]:
    hit, white = rng.random(pixels.shape) < strength, rng.random(pixels.shape) < 0.5
    return np.asarray(np.where(hit, white, pixels), np.float32)


def _brightness(pixels: Images, strength: float, rng: np.random.Generator) -> NDArray[Any]:
    return np.add(pixels, strength)


def _contrast(pixels: Images, strength: float, rng: np.random.Generator) -> NDArray[Any]:
    mean = pixels.mean(axis=(2, 3), keepdims=True)
    return np.asarray((pixels - mean) * strength + mean, np.float32)


def _pixelate(pixels: Images, strength: float, rng: np.random.Generator) -> NDArray[Any]:
    """Replace each block by its mean; blocks are those of a coarse grid laid over the image."""
    out = pixels
    for axis in (2, 3):
        side = pixels.shape[axis]
        coarse = max(1, int(side * strength))
        block = np.arange(side) * coarse // side
        starts = np.searchsorted(block, np.arange(coarse))
        sums = np.add.reduceat(out, starts, axis=axis)
        counts = np.diff([*starts, side]).astype(np.float32)
        shape = [1, 1, 1, 1]
        shape[axis] = coarse
        out = np.take(sums / counts.reshape(shape), block, axis=axis)
    return out


_FUNCTIONS: dict[str, Callable[[Images, float, np.random.Generator], NDArray[Any]]] = {
    "gaussian-noise": _gaussian,
    "shot-noise": _shot,
    "impulse-noise": _impulse,
    "brightness": _brightness,
    "contrast": _contrast,
    "pixelate": _pixelate,
}
