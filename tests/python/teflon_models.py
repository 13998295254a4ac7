"""Writes uint8 models for Mesa's Teflon delegate, and inputs for them.

usage: teflon_models.py OUT_DIR MODELS_DIR

OUT_DIR/<name> holds model.tflite and input.bin. Names that begin with `plain` are of the kind that Mesa's driver does
right; `add`, `oblong`, `channels-24` and `depthwise-zeros` have one trait each that it is known to do wrong.

The digit models of MODELS_DIR begin with a depthwise convolution of one channel. Mesa runs it as a direct one, but reads
the filter as it lies: [kh, kw, k] as if it were [k, kh, kw]. So each digit model <name> comes three times: as it is; as
<name>-direct, the same function with a direct convolution, which Mesa does right; and as <name>-misread, with a direct
convolution that has the filter that Mesa sees, for the reference to compute what Mesa must come to. All of them end
before the softmax, which would magnify one step of its input to several.
"""

import sys
from pathlib import Path

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from operator_models import Model, same

random = np.random.default_rng(7)
# Standard deviation of bytes that are all equally likely, and of results: in the layers without an activation of
# tests/models/mnist-v2 it is 18 to 31.
SPREAD, WANTED = 74, 22


def convolution(size, channels, kernels, kernel, stride=1, zeros=(128, 128), depthwise=False):
    """One convolution with the padding SAME; `size` is height and width, `zeros` those of input and weights."""
    options = schema.DepthwiseConv2DOptionsT() if depthwise else schema.Conv2DOptionsT()
    options.padding, options.strideW, options.strideH = 0, stride, stride
    options.dilationWFactor = options.dilationHFactor = options.depthMultiplier = 1
    options.fusedActivationFunction = 0
    model = Model("DEPTHWISE_CONV_2D" if depthwise else "CONV_2D", options)
    scale, weight_scale = np.float32(0.02), np.float32(0.005)
    model.input("u8", [1, *size, channels], (scale, zeros[0]))
    shape = [1, kernel, kernel, channels] if depthwise else [kernels, kernel, kernel, channels]
    weights = random.integers(0, 256, shape, np.uint8)
    model.constant("u8", shape, [weight_scale], [zeros[1]], data=weights)
    bias = random.integers(-2000, 2000, kernels)
    model.constant("i32", [kernels], [scale * weight_scale], [0], data=bias)
    products = kernel * kernel * (1 if depthwise else channels)
    output_scale = scale * weight_scale * np.float32(np.sqrt(products) * SPREAD * SPREAD / WANTED)
    model.output("u8", [1, *(same(extent, stride) for extent in size), kernels], (output_scale, 121))
    return model


def sum_with_input(size, channels):
    """A convolution, and its result added to its input."""
    model = convolution(size, channels, channels, 1)
    code, add = schema.OperatorCodeT(), schema.OperatorT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.ADD
    code.version = 2
    model.model.operatorCodes.append(code)
    add.opcodeIndex = 1
    add.builtinOptionsType = schema.BuiltinOptions.AddOptions
    add.builtinOptions = schema.AddOptionsT()
    add.inputs = [model.operator.outputs[0], model.operator.inputs[0]]
    add.outputs = [model.value("u8", [1, *size, channels], (np.float32(0.03), 125))]
    model.graph.operators.append(add)
    model.graph.outputs = add.outputs
    return model


MODELS = {
    "plain-1x1": lambda: convolution([8, 8], 32, 32, 1),
    "plain-1x1-zeros": lambda: convolution([10, 10], 64, 96, 1, zeros=(117, 140)),
    "plain-3x3": lambda: convolution([12, 12], 32, 64, 3),
    "plain-3x3-zeros": lambda: convolution([12, 12], 32, 64, 3, zeros=(131, 120)),
    "plain-3x3-stride": lambda: convolution([16, 16], 32, 32, 3, stride=2),
    "plain-3x3-grey": lambda: convolution([16, 16], 1, 32, 3, stride=2),
    "plain-3x3-colour": lambda: convolution([16, 16], 3, 16, 3),
    "plain-5x5": lambda: convolution([14, 14], 16, 32, 5),
    "plain-bands": lambda: convolution([64, 64], 64, 16, 3),
    "plain-depthwise": lambda: convolution([8, 8], 64, 64, 3, depthwise=True),
    "add": lambda: sum_with_input([14, 14], 64),
    "channels-24": lambda: convolution([12, 12], 24, 32, 1),
    "oblong": lambda: convolution([10, 14], 32, 32, 3),
    "depthwise-zeros": lambda: convolution([10, 10], 96, 96, 3, zeros=(117, 140), depthwise=True),
}


def packed(model):
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def without_softmax(data):
    """A model without its last operator."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    graph = model.subgraphs[0]
    graph.outputs = graph.operators.pop().inputs
    model.signatureDefs = None
    return model


def direct(model, misread):
    """Makes the first operator, a depthwise convolution of one channel, a direct one."""
    graph = model.subgraphs[0]
    first = graph.operators[0]
    filter = graph.tensors[first.inputs[1]]
    _, height, width, kernels = filter.shape
    data = np.array(model.buffers[filter.buffer].data, np.uint8)
    if not misread:
        data = data.reshape(height * width, kernels).T.flatten()
    filter.shape, model.buffers[filter.buffer].data = [kernels, height, width, 1], data
    options, old = schema.Conv2DOptionsT(), first.builtinOptions
    options.padding, options.strideW, options.strideH = old.padding, old.strideW, old.strideH
    options.dilationWFactor, options.dilationHFactor = old.dilationWFactor, old.dilationHFactor
    options.fusedActivationFunction = old.fusedActivationFunction
    first.builtinOptions, first.builtinOptionsType = options, schema.BuiltinOptions.Conv2DOptions
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.CONV_2D
    code.version = 3
    model.operatorCodes.append(code)
    first.opcodeIndex = len(model.operatorCodes) - 1
    return model


def digits(out, models):
    for name in ["mnist", "mnist-v2"]:
        data = (models / name / "model.tflite").read_bytes()
        variants = {
            "": without_softmax(data),
            "-direct": direct(without_softmax(data), misread=False),
            "-misread": direct(without_softmax(data), misread=True),
        }
        for suffix, variant in variants.items():
            folder = out / f"{name}{suffix}"
            folder.mkdir(parents=True)
            (folder / "model.tflite").write_bytes(packed(variant))
            (folder / "input.bin").write_bytes((models / "mnist" / "digits.bin").read_bytes())


if __name__ == "__main__":
    out, models = map(Path, sys.argv[1:])
    for name, make in MODELS.items():
        make().write(out / name)
    digits(out, models)
