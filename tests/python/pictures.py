"""Pictures as the bundled detector's input tensor, with Pillow: stretched by its bicubic filter, scaled to [-1, 1].

usage: pictures.py OUT.bin PICTURE...
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

# Of the model's input tensor.
SIZE, SCALE, ZERO_POINT = (300, 300), np.float32(0.007432128), 2


def stretch(path):
    return Image.open(path).convert("RGB").resize(SIZE, Image.Resampling.BICUBIC)


def quantise(picture):
    real = (np.asarray(picture, np.float32) - np.float32(127.5)) / np.float32(127.5)
    return np.clip(np.round(real / SCALE) + ZERO_POINT, -128, 127).astype(np.int8)


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(b"".join(quantise(stretch(path)).tobytes() for path in sys.argv[2:]))
