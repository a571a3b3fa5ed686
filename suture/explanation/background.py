"""What a region shows when it is "absent": the background of region values. It is stated on every page, because values
against one background are not values against another.

- ``site``: the mean image of the site's own training patients. It answers "what makes this image differ from this
  hospital's average?". The mean is computed from rows, so it stays at the site, as the page made from it does.
- ``blur``: the image itself, blurred until structure is gone (Gaussian, a tenth of the width). It needs no other image, so
  it serves where no site is named; it answers "what does the detail in this region add?". A bright marker leaves a faint
  patch in it, so its value comes out smaller than against the site's mean.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

Images = NDArray[np.float32]
KINDS = ("site", "blur")
WORDS = {
    "site": "the mean image of this site's own training patients, which stays at the site",
    "blur": "the image itself, blurred (Gaussian, a tenth of the width)",
}


def blurred(image: Images) -> Images:
    """The image (a row of pixels) without detail.

    >>> flat = np.full(256, 0.25, np.float32)
    >>> bool(np.allclose(blurred(flat), flat))
    True
    """
    size = round(len(image) ** 0.5)
    soft = gaussian_filter(image.reshape(size, size).astype(np.float64), sigma=size / 10, mode="nearest")
    return np.asarray(soft.reshape(-1), np.float32)


def mean_image(images: Images) -> Images:
    """The mean of rows of pixels.

    >>> mean_image(np.array([[0.0, 1.0], [1.0, 1.0]], np.float32)).tolist()
    [0.5, 1.0]
    """
    return np.asarray(images.mean(axis=0, dtype=np.float64), np.float32)
