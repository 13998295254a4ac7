"""Runs a TFLite model on LiteRT's reference kernels.

usage: litert_reference.py [--all] MODEL INPUT.bin OUT_DIR

INPUT.bin holds the bytes of every input tensor, one after the other, and may hold several such sets. For set i, output
j is written to OUT_DIR/i/output_j.bin. With --all, every tensor t that has a value is written to OUT_DIR/i/tensor_t.bin.
"""

import sys
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType


def run(model, data, out, every=False, delegates=None):
    interpreter = Interpreter(
        model_path=str(model),
        experimental_delegates=delegates,
        experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
        experimental_preserve_all_tensors=every,
    )
    interpreter.allocate_tensors()
    inputs = interpreter.get_input_details()
    sizes = [int(np.prod(i["shape"])) * np.dtype(i["dtype"]).itemsize for i in inputs]
    data = Path(data).read_bytes()
    if not data or len(data) % sum(sizes):
        sys.exit(f"{len(data)} bytes are not sets of {sum(sizes)}")
    for number in range(len(data) // sum(sizes)):
        position = number * sum(sizes)
        for detail, size in zip(inputs, sizes):
            values = np.frombuffer(data[position : position + size], detail["dtype"])
            interpreter.set_tensor(detail["index"], values.reshape(detail["shape"]))
            position += size
        interpreter.invoke()
        write(interpreter, Path(out) / str(number), every)


def write(interpreter, folder, every):
    folder.mkdir(parents=True, exist_ok=True)
    for j, detail in enumerate(interpreter.get_output_details()):
        (folder / f"output_{j}.bin").write_bytes(interpreter.get_tensor(detail["index"]).tobytes())
    for detail in interpreter.get_tensor_details() if every else []:
        try:
            value = interpreter.get_tensor(detail["index"])
        except ValueError:
            continue  # Nothing computes this tensor.
        (folder / f"tensor_{detail['index']}.bin").write_bytes(value.tobytes())


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--all"]
    run(*arguments, every="--all" in sys.argv)
