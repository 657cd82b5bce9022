"""Pictures that are given to a model one by one, each brought to size and channels as a file's image is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sepal.data.examples import PIXELS
from sepal.data.sources.images import EXAMPLES, FILES, ImageFormat, as_array, check_alike, read_example
from sepal.data.sources.inputs import Inputs, bytes_shapes, name_of
from sepal.errors import DataError

PICTURE = "a PIL image, a path, or an array (H, W) or (H, W, C), uint8 or uint16"


def read_pictures(data: Any, shape: tuple[int, ...], image_format: ImageFormat) -> Inputs | None:
    """Return pictures as their files would be read; None if ``data`` is other data.

    Args:
        data: One picture or a list of them, each a PIL image, an array (H, W) or (H, W, C), uint8 or uint16, or in a
            list the path of an image or a .npy file; or such an array (n, H, W[, C]). Three axes are one picture if the
            last has at most 4 entries, unless those are grey images of the model's size.
        shape: The shape of one example as the model takes it. Arrays of this size and these channels are not changed.
        image_format: What the others are brought to.

    Raises:
        DataError: A picture is none, cannot be read, or has another shape than the others.
    """
    pictures = _listed(data, shape)
    if pictures is None:
        return None
    arrays = [_read(number, picture, shape, image_format) for number, picture in enumerate(pictures)]
    check_alike("data", arrays)
    names = [name_of(Path(entry).name) if isinstance(entry, str | Path) else str(n) for n, entry in enumerate(pictures)]
    return Inputs(names, np.stack(arrays), None)


def _listed(data: Any, shape: tuple[int, ...]) -> Sequence[Any] | None:
    """Return pictures one by one, at least one; None if there are none."""
    if _is_image(data):
        return [data]
    if isinstance(data, list | tuple):
        return data if any(isinstance(item, str | Path) or _is_picture(item, shape) for item in data) else None
    if len(shape) != 3 or not _has_pixels(data):
        return None
    array = np.asarray(data)
    if array.ndim not in (2, 3, 4) or not array.size:
        raise DataError("data", "pixels of images (H, W[, C]) or (n, H, W[, C])", array.shape)
    if array.ndim == 4 or (array.ndim == 3 and array.shape[1:] in bytes_shapes(shape)):
        return list(array)
    if array.ndim == 2 or array.shape[2] <= 4:
        return [array]
    if array.shape[0] == shape[0] == 3:  # three grey images, or a colour image as torchvision reads it
        raise DataError("data", "a colour image as (H, W, 3), or a list of grey ones", array.shape)
    return list(array)


def _is_image(item: Any) -> bool:
    return hasattr(item, "getexif")  # PIL's: it is imported only where an image is given


def _is_picture(item: Any, shape: tuple[int, ...]) -> bool:
    return _is_image(item) or (len(shape) == 3 and _has_pixels(item) and item.ndim in (2, 3))


def _has_pixels(item: Any) -> bool:
    return str(getattr(item, "dtype", "")).removeprefix("torch.") in PIXELS


def _read(number: int, picture: Any, shape: tuple[int, ...], image_format: ImageFormat) -> npt.NDArray[Any]:
    key = f"data, picture {number}"
    if isinstance(picture, str | Path):
        if Path(picture).suffix.lower() not in EXAMPLES:
            raise DataError(key, FILES, str(picture))
        return read_example(Path(picture), image_format)
    if _is_image(picture):
        return as_array(key, picture, image_format)
    array = np.asarray(picture)
    if not _is_picture(picture, shape) or not array.size:
        raise DataError(key, PICTURE, f"{array.dtype} {array.shape}" if array.ndim else type(picture).__name__)
    if array.shape in bytes_shapes(shape):
        return array.reshape(shape[1:]) if shape[0] == 1 else array
    from PIL import Image

    try:
        image = Image.fromarray(array[..., 0] if array.shape[2:] == (1,) else array)
    except (TypeError, ValueError):
        raise DataError(key, PICTURE, f"{array.dtype} {array.shape}") from None
    return as_array(key, image, image_format)
