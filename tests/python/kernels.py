"""Shows how far TFLite's own kernels are apart on a model, and how far one input byte moves its outputs.

usage: kernels.py MODEL INPUT.bin…

Each INPUT.bin holds the bytes of the model's one input tensor; without one, random bytes are taken.
"""

import sys
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

KERNELS = {
    "optimised kernels": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    "XNNPACK": OpResolverType.AUTO,
}


class Model:
    def __init__(self, path, kernels):
        self.interpreter = Interpreter(model_path=path, experimental_op_resolver_type=kernels)
        self.interpreter.allocate_tensors()
        self.input = self.interpreter.get_input_details()[0]

    def outputs(self, values):
        self.interpreter.set_tensor(self.input["index"], values)
        self.interpreter.invoke()
        details = self.interpreter.get_output_details()
        return np.concatenate([self.interpreter.get_tensor(d["index"]).astype(int).ravel() for d in details])


def say(what, a, b):
    differences = abs(a - b)
    beyond = (differences > 2).sum()
    print(f"  {what}: largest difference {differences.max()}, {beyond} of {differences.size} beyond 2")


def main(path, *files):
    reference = Model(path, OpResolverType.BUILTIN_REF)
    others = {name: Model(path, kernels) for name, kernels in KERNELS.items()}
    shape, dtype = reference.input["shape"], reference.input["dtype"]
    random = np.random.default_rng(1)
    inputs = {file: np.frombuffer(Path(file).read_bytes(), dtype).reshape(shape) for file in files}
    if not inputs:
        limits = np.iinfo(dtype)
        inputs = {"random": random.integers(limits.min, limits.max + 1, shape).astype(dtype)}
    for name, values in inputs.items():
        print(name)
        expected = reference.outputs(values)
        for kernels, model in others.items():
            say(f"{kernels} against reference kernels", model.outputs(values), expected)
        moved = values.copy()
        place = tuple(random.integers(0, extent) for extent in shape)
        moved[place] += 1 if moved[place] < np.iinfo(dtype).max else -1
        say("reference kernels, one input byte changed by 1", reference.outputs(moved), expected)


if __name__ == "__main__":
    main(*sys.argv[1:])
