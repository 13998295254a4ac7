"""Makes the golden inputs and outputs of the bundled model packages with LiteRT's reference kernels.

usage: golden.py TESTS_FOLDER
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import pictures

SCRIPT = Path(__file__).with_name("litert_reference.py")


def reference(model, tensor):
    """The bytes of every output."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "input.bin"
        data.write_bytes(tensor.tobytes())
        subprocess.run([sys.executable, SCRIPT, model, data, folder], check=True)
        outputs = sorted((Path(folder) / "0").glob("output_*.bin"))
        return [output.read_bytes() for output in outputs]


def detector(tests):
    folder = tests / "models" / "ssd-oidv4"
    picture = pictures.stretch(tests / "pictures" / "chelsea.jpg")
    picture.save(folder / "golden.png", optimize=True)
    tensor = pictures.quantise(picture)
    boxes, scores = reference(folder / "model.tflite", tensor)
    (folder / "golden_boxes.bin").write_bytes(boxes)
    (folder / "golden_scores.bin").write_bytes(scores)


def digits(models, name, a, b):
    """Two digits over each other: a clear one has a certain answer, which says little about the arithmetic."""
    folder = models / name
    every = np.fromfile(models / "mnist" / "digits.bin", np.uint8).reshape(10, 28, 28).astype(np.uint16)
    tensor = ((every[a] + every[b]) // 2).astype(np.uint8)
    Image.fromarray(tensor).save(folder / "golden.png", optimize=True)
    (scores,) = reference(folder / "model.tflite", tensor)
    (folder / "golden_scores.bin").write_bytes(scores)


if __name__ == "__main__":
    root = Path(sys.argv[1])
    detector(root)
    digits(root / "models", "mnist", 9, 4)
    digits(root / "models", "mnist-v2", 6, 3)
