"""Runs a TFLite model through an external delegate, and what the delegate leaves on LiteRT's reference kernels.

usage: through_delegate.py LIBRARY MODEL INPUT.bin OUT_DIR

Files are those of litert_reference.py. The delegate's report goes to OUT_DIR/report.
"""

import sys
from pathlib import Path

from ai_edge_litert.interpreter import load_delegate

import litert_reference

if __name__ == "__main__":
    library, model, data, out = sys.argv[1:]
    delegate = load_delegate(library, {"report": Path(out) / "report"})
    litert_reference.run(model, data, out, delegates=[delegate])
