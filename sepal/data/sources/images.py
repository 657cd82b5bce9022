"""Reads images and arrays, one example per file, and brings images to one size and one number of channels.

All images of data sets are decoded by one function here, :func:`decoded`, from bytes.
"""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sepal.data.examples import PIXELS
from sepal.data.sources.reading import load_array, reading
from sepal.errors import DataError
from sepal.storage.regular import check_regular

IMAGES = (".png", ".jpg", ".jpeg")
EXAMPLES = (*IMAGES, ".npy")  # a file's suffix, in lower case
FILES = ".png, .jpg or .npy files"
IMAGE = "a PNG or JPEG image"
ORIENTATION = 0x0112  # EXIF's tag
GREY_16 = ("I", "I;16", "I;16B", "I;16L")  # PIL's modes of 16-bit grey PNG files, of which some versions say I
FORMATS = ("PNG", "JPEG")  # other decoders of PIL are never started; that of EPS runs Ghostscript
MOST_PIXELS = 2**26  # 8,192 × 8,192, more than a camera of 64 megapixels takes
MOST_BYTES = 4 * MOST_PIXELS  # of an image file; more than the pixels themselves take
MOST_SCANNED = 2**33  # pixels over all scans of a JPEG file, each of which passes over all of them; some seconds' work
SCAN = b"\xff\xda"  # begins a scan
NAMED, KINDS = 3, 4  # files and kinds of files that a message names, at most
COMMON_SIZE = "64"  # what images of several sizes become where folder.resize is not set


class ImageFormat(NamedTuple):
    """What image files are brought to.

    Attributes:
        size: Height and width; None: as they are.
        channels: 1: grey, 3: colour, auto: as they are.
    """

    size: tuple[int, int] | None = None
    channels: Literal["auto", 1, 3] = "auto"


AS_IS = ImageFormat()


class MixedSizesError(DataError):
    """Images have several sizes, and nothing says which one they are brought to.

    Attributes:
        files: Two sizes, HEIGHTxWIDTH, to the first image of each; empty if the error is of another process.
    """

    files: Mapping[str, str] = MappingProxyType({})


def left_as_they_are(mixed: MixedSizesError) -> MixedSizesError:
    """Return the error for a run whose config says that images keep their sizes: who reads it may not have set that."""
    got = f'{mixed.got}; the run config has folder.resize = "", which leaves images as they are'
    error = MixedSizesError(mixed.key, mixed.expected, got)
    error.files = mixed.files
    return error


class OneSize:
    """Checks while images are read that they have one size, so that the first one of another size ends the reading.

    Args:
        key: Where they are from.
        image_format: What they are brought to.
    """

    def __init__(self, key: str, image_format: ImageFormat) -> None:
        self._key, self._as_they_are = key, image_format.size is None
        self._first = self._first_file = ""

    def check(self, name: str, image: NDArray[Any]) -> None:
        """Compare an image's size with that of the first one.

        Args:
            name: Where it is; begins with the key.
            image: (H, W) or (H, W, 3).

        Raises:
            MixedSizesError: It is another one.
        """
        size = f"{image.shape[0]}x{image.shape[1]}"
        file = name.removeprefix(self._key).lstrip("/ ")
        if not self._first:
            self._first, self._first_file = size, file
        if self._as_they_are and size != self._first:
            expected = f"images of one size (folder.resize = {COMMON_SIZE})"
            error = MixedSizesError(self._key, expected, f"{self._first} and {size} ({file})")
            error.files = {self._first: self._first_file, size: file}
            raise error


def read_example(path: Path, image_format: ImageFormat = AS_IS) -> NDArray[Any]:
    """Return one example: an image, (H, W) or (H, W, 3), or the array of a .npy file, which is never changed.

    Raises:
        DataError: The file cannot be read.
    """
    return _image(path, image_format) if path.suffix.lower() in IMAGES else load_array(path)


def _image(path: Path, image_format: ImageFormat) -> NDArray[Any]:
    with reading(str(path), IMAGE):
        check_regular(path)
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise DataError(str(path), f"{IMAGE} of at most {MOST_BYTES:,} bytes", "more")
    return decoded(str(path), content, image_format)


def from_cell(key: str, cell: Any, image_format: ImageFormat = AS_IS) -> NDArray[Any]:
    """Return the image in a cell of a table, ``{"bytes": …, "path": …}``, as :func:`decoded`. The path is not opened.

    Raises:
        DataError: The cell has no bytes, or other ones than an image's; ``key`` says where it is.
    """
    content = cell.get("bytes") if isinstance(cell, dict) else None
    if not isinstance(content, bytes):
        named = isinstance(cell, dict) and cell.get("path") is not None
        got = "a path, which is never opened" if named else "nothing"
        raise DataError(key, "the bytes of a PNG or JPEG image", got)
    return decoded(key, content, image_format)


def decoded(key: str, content: bytes, image_format: ImageFormat = AS_IS) -> NDArray[Any]:
    """Return the image in the bytes of a PNG or JPEG file as pixels, (H, W) or (H, W, 3), as :func:`as_array`.

    It is upright: a JPEG's EXIF data may say how far to rotate its pixels.

    Raises:
        DataError: It is none, has more than ``MOST_PIXELS``, or more than ``MOST_SCANNED`` over all scans; ``key`` says
            where it is from.
    """
    from PIL import Image, UnidentifiedImageError

    with reading(key, IMAGE), warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our limit is lower
        try:
            with Image.open(io.BytesIO(content), formats=FORMATS) as stored:
                _check_scans(key, content, stored)
                return as_array(key, stored, image_format)
        except UnidentifiedImageError:
            got = f"{len(content):,} bytes that are none" if content else "an empty file"
            raise DataError(key, IMAGE, got) from None
        except Image.DecompressionBombError as error:
            raise DataError(key, f"{IMAGE} of at most {MOST_PIXELS:,} pixels", str(error)) from error


def _check_scans(key: str, content: bytes, stored: Any) -> None:
    """Raise a DataError for a JPEG file of very many scans: a scan takes a dozen bytes and as long as an image."""
    if stored.format == "PNG":
        return
    scans, most = content.count(SCAN), MOST_SCANNED // max(1, stored.width * stored.height)
    if scans > most:
        raise DataError(key, f"a JPEG image of this size with at most {most:,} scans", f"{scans:,}")


def as_array(key: str, stored: Any, image_format: ImageFormat) -> NDArray[Any]:
    """Return a PIL image as pixels, (H, W) or (H, W, 3): uint8; of 16-bit grey, uint16. Black is 0 in both.

    Raises:
        DataError: It is none, is too large, cannot be decoded, or has what pixels do not hold: transparency, fractions,
            or more than 16 bits; ``key`` says where it is from.
    """
    from PIL import Image, ImageOps

    if not isinstance(stored, Image.Image):
        raise DataError(key, "an image", "nothing" if stored is None else type(stored).__name__)
    if stored.width * stored.height > MOST_PIXELS:  # before anything is decoded
        size = f"{stored.width:,} × {stored.height:,}"
        raise DataError(key, f"an image of at most {MOST_PIXELS:,} pixels", size)
    with reading(key, IMAGE):
        image = stored  # copied only where that changes it: a large one takes hundreds of megabytes
        if stored.getexif().get(ORIENTATION, 1) != 1:
            image = ImageOps.exif_transpose(stored)
        _check_mode(key, image)
        if image.mode in GREY_16:
            return _grey_16(key, image, image_format)
        modes = ["L" if image.mode in ("1", "L") else "RGB"]
        if image_format.channels != "auto":
            modes.append("L" if image_format.channels == 1 else "RGB")
        for mode in modes:
            image = image if image.mode == mode else image.convert(mode)
        return np.asarray(_fitted(image, image_format))


def _check_mode(key: str, image: Any) -> None:
    """Raise a DataError if converting an image to pixels would change what it shows."""
    if image.mode == "F":
        raise DataError(key, "an image of whole numbers (an array of floats can be a .npy file)", "one of floats")
    if not image.has_transparency_data:
        return
    opaque = image.mode not in GREY_16 and image.convert("RGBA").getchannel("A").getextrema() == (255, 255)
    if not opaque:
        raise DataError(key, "an image without transparency, flattened onto a background", "transparent pixels")


def _fitted(image: Any, image_format: ImageFormat) -> Any:
    """Return a PIL image, scaled and cut around its centre; bilinear over all pixels that a smaller one covers."""
    from PIL import Image, ImageOps

    return ImageOps.fit(image, image_format.size[::-1], Image.Resampling.BILINEAR) if image_format.size else image


def _grey_16(key: str, image: Any, image_format: ImageFormat) -> NDArray[np.uint16]:
    """Return an image of 16-bit grey, whose pixels PIL's own conversions would cut off at 255."""
    low, high = image.getextrema()
    if low < 0 or high > PIXELS["uint16"]:
        raise DataError(key, "an image of at most 16 bits", f"grey from {low} to {high}")
    pixels = np.asarray(image).astype(np.uint16)
    if image_format.size:
        from PIL import Image

        floats = np.asarray(_fitted(Image.fromarray(pixels.astype(np.float32)), image_format))
        pixels = np.clip(np.rint(floats), 0, PIXELS["uint16"]).astype(np.uint16)
    return np.repeat(pixels[..., None], 3, axis=2) if image_format.channels == 3 else pixels


def check_alike(key: str, arrays: Sequence[NDArray[Any]]) -> None:
    """Raise a DataError that says how many examples have which size, channels or shape, unless all have the same."""
    if len({(array.dtype, array.shape) for array in arrays}) < 2:
        return
    if not all(array.dtype.name in PIXELS and array.ndim in (2, 3) for array in arrays):
        got = counted(f"{array.dtype} {array.shape}" for array in arrays)
        raise DataError(key, f"{len(arrays)} files of one shape and type", got)
    counts_by_rule = {
        "one number of bits": counted(f"{8 * array.dtype.itemsize} bits" for array in arrays),
        "one size": counted(f"{array.shape[0]}x{array.shape[1]}" for array in arrays),
        "one number of channels (folder.channels = 3)": counted(_channels(array) for array in arrays),
    }
    odd = {rule: counts for rule, counts in counts_by_rule.items() if "," in counts}
    raise DataError(key, f"{len(arrays)} images of {' and '.join(odd)}", "; ".join(odd.values()))


def _channels(image: NDArray[Any]) -> str:
    return "1 channel" if image.ndim == 2 else f"{image.shape[2]} channels"


def counted(words: Iterable[str]) -> str:
    """Return how many there are of each word, the commonest first; separated by commas."""
    counts = Counter(words).most_common()
    listed = ", ".join(f"{count} of {word}" for word, count in counts[:KINDS])
    rest = counts[KINDS:]
    return f"{listed}, and {sum(count for _, count in rest)} of {len(rest)} more kinds" if rest else listed


def left_out(bad: Sequence[DataError], key: str = "folder.on-bad-file: ") -> tuple[str, ...]:
    """Return the line, beginning with ``key``, that names the files that could not be read; none if all could."""
    if not bad:
        return ()
    named = ", ".join(error.key for error in bad[:NAMED])
    more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
    count = f"{len(bad)} files that cannot be read are" if len(bad) > 1 else "1 file that cannot be read is"
    return (f"{key}{count} left out: {named}{more}",)
