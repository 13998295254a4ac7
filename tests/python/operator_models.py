"""Writes small random models, one operator each, and what LiteRT's reference kernels compute with them.

usage: operator_models.py OUT_DIR

OUT_DIR/<name> holds model.tflite, input.bin with some sets of inputs, and the outputs of set i in folder i, as
litert_reference.py writes them. What is random is the same at every run.
"""

import sys
from pathlib import Path

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

import litert_reference

SETS = 4
TYPES = {"i8": schema.TensorType.INT8, "u8": schema.TensorType.UINT8, "f32": schema.TensorType.FLOAT32}
NUMPY = {"i8": np.int8, "u8": np.uint8, "f32": np.float32, "i32": np.int32}
random = np.random.default_rng(5)


class Model:
    """A model of one operator."""

    def __init__(self, operator, options=None):
        self.model = schema.ModelT()
        self.model.version = 3
        code = schema.OperatorCodeT()
        code.builtinCode = getattr(schema.BuiltinOperator, operator)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        # int8 kernels came with later versions of an operator.
        code.version = 2
        self.model.operatorCodes = [code]
        self.model.buffers = [schema.BufferT()]
        self.graph = schema.SubGraphT()
        self.graph.tensors, self.graph.inputs, self.graph.outputs = [], [], []
        self.operator = schema.OperatorT()
        self.operator.inputs, self.operator.outputs = [], []
        if options is not None:
            self.operator.builtinOptions = options
            self.operator.builtinOptionsType = getattr(schema.BuiltinOptions, type(options).__name__[:-1])
        self.graph.operators = [self.operator]
        self.model.subgraphs = [self.graph]
        self.kinds = []

    def tensor(self, kind, shape, scales=None, zero_points=None, data=None, axis=0):
        tensor = schema.TensorT()
        tensor.name = f"t{len(self.graph.tensors)}"
        tensor.shape = list(shape)
        tensor.type = TYPES.get(kind, schema.TensorType.INT32)
        if scales is not None:
            tensor.quantization = schema.QuantizationParametersT()
            tensor.quantization.scale = [float(s) for s in np.atleast_1d(scales)]
            tensor.quantization.zeroPoint = [int(z) for z in np.atleast_1d(zero_points)]
            tensor.quantization.quantizedDimension = axis
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data, NUMPY[kind]).tobytes(), np.uint8)
            self.model.buffers.append(buffer)
            tensor.buffer = len(self.model.buffers) - 1
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def value(self, kind, shape, quant=None):
        """A tensor that is not a constant, with a random quantisation unless one is given."""
        scale, zero = quant or random_quant(kind)
        return self.tensor(kind, shape, scale, zero) if kind != "f32" else self.tensor(kind, shape)

    def input(self, kind, shape, quant=None):
        index = self.value(kind, shape, quant)
        self.operator.inputs.append(index)
        self.graph.inputs.append(index)
        self.kinds.append((kind, shape))

    def constant(self, *arguments, **keywords):
        self.operator.inputs.append(self.tensor(*arguments, **keywords))

    def output(self, kind, shape, quant=None):
        index = self.value(kind, shape, quant)
        self.operator.outputs = [index]
        self.graph.outputs = [index]

    def write(self, folder):
        folder.mkdir(parents=True)
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        (folder / "model.tflite").write_bytes(builder.Output())
        sets = [values(kind, shape).tobytes() for _ in range(SETS) for kind, shape in self.kinds]
        (folder / "input.bin").write_bytes(b"".join(sets))


def values(kind, shape):
    if kind == "f32":
        return random.normal(0, 3, shape).astype(np.float32)
    info = np.iinfo(NUMPY[kind])
    return random.integers(info.min, info.max, shape, NUMPY[kind], endpoint=True)


def random_quant(kind):
    low, high = {"i8": (-128, 127), "u8": (0, 255), "f32": (0, 1)}[kind]
    return np.float32(random.uniform(0.005, 0.1)), random.integers(low, high, endpoint=True)


def weights(model, kind, shape, axis, count, per_channel):
    """The filter and the bias."""
    if kind == "f32":
        model.constant("f32", shape, data=random.normal(0, 1, shape))
        model.constant("f32", [count], data=random.normal(0, 1, count))
        return
    scales = random.uniform(0.001, 0.02, count if per_channel else 1).astype(np.float32)
    zeros = np.zeros(len(scales), int) if kind == "i8" else random.integers(100, 150, len(scales))
    model.constant(kind, shape, scales, zeros, data=values(kind, shape), axis=axis)
    # Single precision, as TFLite compares the bias's scale with it.
    product = np.float32(model.graph.tensors[0].quantization.scale[0]) * scales
    bias = random.integers(-3000, 3000, count)
    model.constant("i32", [count], product, np.zeros(len(scales), int), data=bias)


def same(extent, stride):
    return -(-extent // stride)


def conv(kind, per_channel, act, stride=1, dilation=1, padding=0):
    options = schema.Conv2DOptionsT()
    options.padding, options.strideW, options.strideH = padding, stride, stride
    options.dilationWFactor = options.dilationHFactor = dilation
    options.fusedActivationFunction = act
    model = Model("CONV_2D", options)
    model.input(kind, [2, 9, 7, 5])
    weights(model, kind, [6, 3, 2, 5], 0, 6, per_channel)
    out = [same(9, stride), same(7, stride)] if padding == 0 else [(9 - 2 * dilation - 1) // stride + 1, (7 - dilation - 1) // stride + 1]
    model.output(kind, [2, *out, 6], (np.float32(0.05), {"i8": 3, "u8": 120, "f32": 0}[kind]))
    return model


def rounding_mul():
    """Scales for which a multiplier computed in double precision gives another product of 152 and -127."""
    options = schema.MulOptionsT()
    options.fusedActivationFunction = 0
    model = Model("MUL", options)
    model.input("u8", [400, 1], (np.float32(0.03234199061989784), 0))
    model.input("u8", [1, 400], (np.float32(0.09647508710622787), 255))
    model.output("u8", [400, 400], (np.float32(0.5354165434837341), 255))
    return model


# Scales of input, filter and output, and a sum around which the two precisions or one and two roundings differ.
ROUNDING = [
    (0.018952464684844017, 0.019495725631713867, 0.0338909886777401, -7383),
    (0.034351978451013565, 0.008515572175383568, 0.09468407928943634, -27027),
    (0.030819587409496307, 0.011950802989304066, 0.08249037712812424, -12654),
]


def rounding_sums(operator, kind, number):
    """The same for sums of products."""
    scale, filter_scale, output_scale = map(np.float32, ROUNDING[number][:3])
    options = {
        "CONV_2D": schema.Conv2DOptionsT,
        "DEPTHWISE_CONV_2D": schema.DepthwiseConv2DOptionsT,
        "FULLY_CONNECTED": schema.FullyConnectedOptionsT,
    }[operator]()
    options.strideW = options.strideH = options.dilationWFactor = options.dilationHFactor = options.depthMultiplier = 1
    options.padding = options.fusedActivationFunction = 0
    model = Model(operator, options)
    shape = [1600, 1] if operator == "FULLY_CONNECTED" else [1, 40, 40, 1]
    lowest, one = {"i8": (-128, 0), "u8": (0, 100)}[kind]
    model.input(kind, shape, (scale, lowest))
    model.constant(kind, [1, 1] if len(shape) == 2 else [1, 1, 1, 1], filter_scale, one, data=[one + 1])
    model.constant("i32", [1], scale * filter_scale, 0, data=[ROUNDING[number][3] - 100])
    model.output(kind, shape, (output_scale, lowest + 255))
    return model


def depthwise(kind, per_channel, act, stride=1, multiplier=1):
    options = schema.DepthwiseConv2DOptionsT()
    options.padding, options.strideW, options.strideH = 0, stride, stride
    options.depthMultiplier = multiplier
    options.dilationWFactor = options.dilationHFactor = 1
    options.fusedActivationFunction = act
    model = Model("DEPTHWISE_CONV_2D", options)
    model.input(kind, [1, 8, 9, 4])
    weights(model, kind, [1, 3, 3, 4 * multiplier], 3, 4 * multiplier, per_channel)
    model.output(kind, [1, same(8, stride), same(9, stride), 4 * multiplier])
    return model


def fully_connected(kind, act):
    options = schema.FullyConnectedOptionsT()
    options.fusedActivationFunction = act
    model = Model("FULLY_CONNECTED", options)
    model.input(kind, [3, 40])
    weights(model, kind, [7, 40], 0, 7, False)
    model.output(kind, [3, 7])
    return model


def pool(operator, kind, act, padding):
    options = schema.Pool2DOptionsT()
    options.padding, options.strideW, options.strideH = padding, 2, 2
    options.filterWidth, options.filterHeight = 3, 2
    options.fusedActivationFunction = act
    model, quant = Model(operator, options), random_quant(kind)
    model.input(kind, [2, 7, 8, 5], quant)
    model.output(kind, [2, 4, 4, 5] if padding == 0 else [2, 3, 3, 5], quant)
    return model


def binary(operator, kind, act, shapes):
    options = schema.AddOptionsT() if operator == "ADD" else schema.MulOptionsT()
    options.fusedActivationFunction = act
    model = Model(operator, options)
    model.input(kind, shapes[0])
    model.input(kind, shapes[1])
    model.output(kind, list(np.broadcast_shapes(*shapes)))
    return model


def softmax(kind, beta):
    options = schema.SoftmaxOptionsT()
    options.beta = beta
    model = Model("SOFTMAX", options)
    model.input(kind, [5, 30])
    model.output(kind, [5, 30], (np.float32(1 / 256), {"i8": -128, "u8": 0, "f32": 0}[kind]))
    return model


def logistic(kind):
    model = Model("LOGISTIC")
    model.input(kind, [4, 256])
    model.output(kind, [4, 256], (np.float32(1 / 256), {"i8": -128, "u8": 0, "f32": 0}[kind]))
    return model


def unary(operator, source, target):
    model = Model(operator)
    model.input(source, [4, 256])
    model.output(target, [4, 256])
    return model


def concatenation(kind, axis, rescale):
    options = schema.ConcatenationOptionsT()
    options.axis = axis
    model, quant = Model("CONCATENATION", options), random_quant(kind)
    shapes = [[2, 3, 4] for _ in range(3)]
    for extent, shape in zip([1, 3, 2], shapes):
        shape[axis] = extent
        model.input(kind, shape, None if rescale else quant)
    shape = list(shapes[0])
    shape[axis] = 6
    model.output(kind, shape, quant)
    return model


def pad(kind):
    model, quant = Model("PAD", schema.PadOptionsT()), random_quant(kind)
    model.input(kind, [2, 3, 4, 5], quant)
    model.constant("i32", [4, 2], data=[[0, 1], [2, 0], [1, 1], [3, 2]])
    model.output(kind, [3, 5, 6, 10], quant)
    return model


def mean(kind, axes, keep):
    options = schema.ReducerOptionsT()
    options.keepDims = keep
    model = Model("MEAN", options)
    shape = [2, 7, 9, 6]
    model.input(kind, shape)
    model.constant("i32", [len(axes)], data=axes)
    kept = [1 if i in axes else s for i, s in enumerate(shape)] if keep else [s for i, s in enumerate(shape) if i not in axes]
    model.output(kind, kept)
    return model


def models():
    activations = {"none": 0, "relu": 1, "relu1": 2, "relu6": 3}
    for kind in ["i8", "u8", "f32"]:
        for name, act in activations.items():
            yield f"conv_{kind}_{name}", conv(kind, False, act)
            yield f"depthwise_{kind}_{name}", depthwise(kind, False, act, 2)
            yield f"fully_connected_{kind}_{name}", fully_connected(kind, act)
            yield f"add_{kind}_{name}", binary("ADD", kind, act, [[2, 5, 6, 7], [2, 5, 6, 7]])
            yield f"mul_{kind}_{name}", binary("MUL", kind, act, [[2, 5, 6, 7], [2, 5, 6, 7]])
            for padding in [0, 1]:
                yield f"average_pool_{kind}_{name}_{padding}", pool("AVERAGE_POOL_2D", kind, act, padding)
                yield f"max_pool_{kind}_{name}_{padding}", pool("MAX_POOL_2D", kind, act, padding)
        yield f"conv_{kind}_stride", conv(kind, False, 0, stride=2)
        yield f"conv_{kind}_dilation_valid", conv(kind, False, 0, dilation=2, padding=1)
        yield f"depthwise_{kind}_multiplier", depthwise(kind, False, 0, 1, 3)
        yield f"add_{kind}_broadcast", binary("ADD", kind, 0, [[2, 5, 1, 7], [6, 7]])
        yield f"mul_{kind}_broadcast", binary("MUL", kind, 0, [[7], [2, 5, 6, 7]])
        for beta in [1.0, 0.3]:
            yield f"softmax_{kind}_{beta}", softmax(kind, beta)
        yield f"logistic_{kind}", logistic(kind)
        yield f"relu_{kind}", unary("RELU", kind, kind)
        yield f"relu6_{kind}", unary("RELU6", kind, kind)
        for axis in range(3):
            yield f"concatenation_{kind}_{axis}", concatenation(kind, axis, False)
        yield f"pad_{kind}", pad(kind)
        for axes in [[1, 2], [3], [0, 2]]:
            for keep in [False, True]:
                yield f"mean_{kind}_{''.join(map(str, axes))}_{keep}", mean(kind, axes, keep)
    for kind in ["i8", "u8"]:
        yield f"quantize_f32_{kind}", unary("QUANTIZE", "f32", kind)
        yield f"dequantize_{kind}", unary("DEQUANTIZE", kind, "f32")
        for number in range(5):
            # Every pair of values, and every value, so that a rounding that is rarely wrong shows.
            yield f"add_{kind}_large_{number}", binary("ADD", kind, 0, [[400, 1], [1, 400]])
            yield f"relu_{kind}_large_{number}", unary("RELU", kind, kind)
            for other in ["i8", "u8"]:
                yield f"quantize_{kind}_{other}_{number}", unary("QUANTIZE", kind, other)
    yield "mul_u8_rounding", rounding_mul()
    for operator in ["CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"]:
        for kind in ["i8", "u8"]:
            for number in range(len(ROUNDING)):
                yield f"{operator.lower()}_{kind}_rounding_{number}", rounding_sums(operator, kind, number)
    yield "concatenation_u8_rescaled", concatenation("u8", 1, True)
    for name, act in activations.items():
        yield f"conv_per_channel_{name}", conv("i8", True, act)
        yield f"depthwise_per_channel_{name}", depthwise("i8", True, act)


if __name__ == "__main__":
    for name, model in models():
        folder = Path(sys.argv[1]) / name
        model.write(folder)
        litert_reference.run(folder / "model.tflite", folder / "input.bin", folder)
