"""Runs TFLite models on LiteRT's reference kernels, or through an external delegate first.

usage: many_models.py NAME LIBRARY|- FOLDER...

Each folder holds model.tflite and input.bin; results go to FOLDER/NAME as those of litert_reference.py do. One process
runs all models, because starting LiteRT takes longer than running them where the processor is emulated.
"""

import sys
from pathlib import Path

from ai_edge_litert.interpreter import load_delegate

import litert_reference

if __name__ == "__main__":
    name, library, *folders = sys.argv[1:]
    for folder in map(Path, folders):
        delegates = None if library == "-" else [load_delegate(library)]
        litert_reference.run(folder / "model.tflite", folder / "input.bin", folder / name, delegates=delegates)
