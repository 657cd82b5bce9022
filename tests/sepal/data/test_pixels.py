"""Every kind of pixel that an image file can have is scaled rightly, or refused; none is clipped."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from sepal.data import load
from sepal.data.sources.images import ImageFormat, as_array, decoded
from sepal.errors import DataError
from sepal.export.preparing import prepared, read
from tests.sepal.data.origins import origin_of

RAMP = np.linspace(0, 1, 64).reshape(8, 8)


def file_of(image, **keys):
    content = io.BytesIO()
    image.save(content, "PNG", **keys)
    return content.getvalue()


def grey(levels, dtype):
    return Image.fromarray(np.rint(RAMP * levels).astype(dtype))


def opaque(mode):
    return grey(255, np.uint8).convert(mode)


RIGHT = {
    "8-bit grey": grey(255, np.uint8),
    "16-bit grey": grey(65535, np.uint16),
    "32-bit grey with 16 bits in it": grey(65535, np.int32),
    "grey with an opaque alpha": opaque("LA"),
    "colour": opaque("RGB"),
    "colour with an opaque alpha": opaque("RGBA"),
    "palette": opaque("RGB").quantize(256),
}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("channels", ["auto", 1, 3])
def test_an_image_keeps_its_brightness(name, channels):
    pixels = as_array("image", RIGHT[name], ImageFormat(None, channels))
    white = {"uint8": 255, "uint16": 65535}[pixels.dtype.name]
    shown = pixels if pixels.ndim == 2 else pixels.mean(axis=2)
    np.testing.assert_allclose(shown / white, RAMP, atol=1 / 64)
    assert channels == "auto" or pixels.shape[2:] == ((3,) if channels == 3 else ())


def test_nothing_of_a_16_bit_image_is_lost_in_a_file_and_by_scaling():
    image = np.arange(64, dtype=np.uint16).reshape(8, 8) + 40000
    assert (decoded("image", file_of(Image.fromarray(image))) == image).all()
    smaller = decoded("image", file_of(Image.fromarray(image)), ImageFormat((4, 4)))
    assert smaller.dtype == np.uint16
    assert 40000 < smaller.min() < smaller.max() < 40064


def half_transparent(mode):
    image = opaque(mode)
    image.putalpha(Image.fromarray(np.tril(np.full((8, 8), 255, np.uint8))))
    return image


REFUSED = {
    "floats": (Image.fromarray(RAMP.astype(np.float32)), "whole numbers .*, got one of floats"),
    "numbers below 0": (Image.fromarray(np.full((8, 8), -1, np.int32)), "16 bits, got grey from -1"),
    "numbers of 17 bits": (Image.fromarray(np.full((8, 8), 2**16, np.int32)), "16 bits, got grey from 65536"),
    "grey with alpha": (half_transparent("L"), "without transparency"),
    "colour with alpha": (half_transparent("RGB"), "without transparency"),
    "a grey that means transparent": (Image.open(io.BytesIO(file_of(opaque("L"), transparency=0))), "without transp"),
    "a palette with a transparent colour": (
        Image.open(io.BytesIO(file_of(opaque("RGB").quantize(16), transparency=3))),
        "without transparency",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_image_with_more_than_pixels_hold_is_refused(name):
    image, message = REFUSED[name]
    with pytest.raises(DataError, match=message):
        as_array("image", image, ImageFormat())


def test_16_bit_files_are_a_data_set_and_a_model_takes_them(tmp_path):
    for name, level in (("dark", 1000), ("bright", 61000)):
        (tmp_path / name).mkdir()
        for number in range(3):
            pixels = np.full((12, 12), level + number, np.uint16)
            (tmp_path / name / f"{number}.png").write_bytes(file_of(Image.fromarray(pixels)))
    source = load("folder", tmp_path)
    assert (source.info.kind, source.info.input_shape, source.info.notes) == ("image", (1, 12, 12), ())
    expected = [2 * (level + number) / 65535 - 1 for level in (61000, 1000) for number in range(3)]
    np.testing.assert_allclose(source.train.x[:, 0, 0, 0], expected, rtol=1e-5)
    origin = origin_of(source.info)
    np.testing.assert_array_equal(prepared(origin, read(origin, tmp_path).x), source.train.x)


def test_16_bit_images_with_another_white_are_named(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.full((4, 9, 9), 4095, np.uint16), y=[0, 1, 1, 0])
    assert load("folder", tmp_path).info.notes[0].endswith("have values up to 4095 only, of 65535 for white")


def test_images_of_8_and_16_bits_are_not_mixed(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(file_of(RIGHT[("16" if name == "a" else "8") + "-bit grey"]))
    with pytest.raises(DataError, match="one number of bits, got 1 of 16 bits, 1 of 8 bits"):
        load("folder", tmp_path)
