"""Treats an external delegate as hosts do: well, badly, and several at once.

usage: delegate_host.py LIBRARY MNIST_MODEL DIGITS.bin CASE

Each case is a function below; it fails by an exception.
"""

import os
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType, load_delegate

import operator_models

LIBRARY, MODEL, DIGITS = sys.argv[1:4]
digits = np.fromfile(DIGITS, np.uint8).reshape(10, 1, 28, 28, 1)


def interpreter(delegate, model=MODEL, **keywords):
    made = Interpreter(model_path=str(model), experimental_delegates=[delegate], **keywords)
    made.allocate_tensors()
    return made


def answer(made, *values):
    for detail, value in zip(made.get_input_details(), values):
        made.set_tensor(detail["index"], value)
    made.invoke()
    return made.get_tensor(made.get_output_details()[0]["index"])


def classes(made):
    return [int(answer(made, digit).argmax()) for digit in digits]


def refused(error, *words):
    """A context in which something must be refused with some words."""

    class Refused:
        def __enter__(self):
            pass

        def __exit__(self, kind, value, _):
            assert kind is not None, "was not refused"
            assert issubclass(kind, error), repr(value)
            assert all(word in str(value) for word in words), str(value)
            return True

    return Refused()


def one_convolution(folder, shape):
    """A convolution of a picture."""
    model = operator_models.conv("i8", per_channel=True, act=1)
    model.graph.tensors[0].shape = shape
    model.graph.tensors[model.graph.outputs[0]].shape = [*shape[:3], 6]
    model.kinds = [("i8", shape)]
    model.write(Path(folder) / "model")
    return Path(folder) / "model" / "model.tflite"


def bad_settings():
    with refused(ValueError, "/dev/none", "No such file"):
        load_delegate(LIBRARY, {"device": "/dev/none"})
    with refused(ValueError, "/dev/null"):
        load_delegate(LIBRARY, {"device": "/dev/null"})
    with refused(ValueError, "devices", "device, contexts and report"):
        load_delegate(LIBRARY, {"devices": "/dev/none"})
    with refused(ValueError, "contexts", "'0'".replace("'", '"')):
        load_delegate(LIBRARY, {"contexts": 0})
    os.environ["CAIRN_DELEGATE"] = "device=/dev/elsewhere"
    with refused(ValueError, "/dev/elsewhere"):
        load_delegate(LIBRARY)
    # An option of the host counts more.
    load_delegate(LIBRARY, {"device": "/dev/accel/accel0"})


def several_interpreters():
    """One delegate for four threads with an interpreter each, and another delegate beside it."""
    shared, own = load_delegate(LIBRARY, {"contexts": 3}), load_delegate(LIBRARY)
    made = [interpreter(delegate) for delegate in [shared, shared, shared, own]]
    seen = {}
    threads = [threading.Thread(target=lambda k=k: seen.update({k: classes(made[k])})) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {k: list(range(10)) for k in range(4)}, seen


def interpreter_after_interpreter():
    """Parts are freed with their interpreter, and the delegate may go first."""
    delegate = load_delegate(LIBRARY)
    for _ in range(20):
        made = interpreter(delegate)
        assert answer(made, digits[7]).argmax() == 7
        del made
    made = interpreter(load_delegate(LIBRARY))
    assert answer(made, digits[7]).argmax() == 7


def resized():
    """After a resize the runtime asks again; what the NPU cannot do then runs on the runtime's kernels."""
    with tempfile.TemporaryDirectory() as folder:
        model = one_convolution(folder, [1, 9, 7, 5])
        report = Path(folder) / "report"
        made = interpreter(load_delegate(LIBRARY, {"report": report}), model)
        reference = Interpreter(model_path=str(model), experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
        for shape in [[1, 9, 7, 5], [1, 12, 8, 5], [2, 9, 7, 5], [1, 9, 7, 5]]:
            values, results = operator_models.values("i8", shape), []
            for each in [made, reference]:
                each.resize_tensor_input(each.get_input_details()[0]["index"], shape)
                each.allocate_tensors()
                results.append(answer(each, values).astype(int))
            difference = abs(results[0] - results[1])
            print(shape, "largest difference", difference.max())
            assert results[0].shape == results[1].shape and difference.max() <= 1
        text = report.read_text()
        assert "I8[1, 12, 8, 6] scale 0.05 zero point 3: on the NPU" in text, text
        assert "I8[2, 9, 7, 6] scale 0.05 zero point 3: left:" in text, text


def dynamic_shape():
    """A graph whose shapes depend on values is refused as TFLite does for every delegate of static shapes."""
    with tempfile.TemporaryDirectory() as folder:
        model = operator_models.conv("i8", per_channel=True, act=1)
        code = schema.OperatorCodeT()
        code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.RESHAPE
        code.version = 1
        model.model.operatorCodes.append(code)
        shape = model.tensor("i32", [2])
        [picture] = model.graph.outputs
        flat = model.value("i8", [2, 378], (np.float32(0.05), 3))
        model.graph.tensors[flat].shapeSignature = [-1, -1]
        reshape = schema.OperatorT()
        reshape.opcodeIndex, reshape.inputs, reshape.outputs = 1, [picture, shape], [flat]
        model.graph.operators.append(reshape)
        model.graph.inputs.append(shape)
        model.graph.outputs = [flat]
        model.write(Path(folder) / "model")
        path = Path(folder) / "model" / "model.tflite"
        delegate = load_delegate(LIBRARY)
        with refused(RuntimeError):
            interpreter(delegate, path)
        without = Interpreter(model_path=str(path))
        without.allocate_tensors()
        answer(without, operator_models.values("i8", [2, 9, 7, 5]), np.array([4, 189], np.int32))
        assert classes(interpreter(delegate)) == list(range(10))


def forked():
    """A child has the memory of its parent, but not the engine's threads: it is told so and can start anew."""
    delegate = load_delegate(LIBRARY)
    made = interpreter(delegate)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with refused(RuntimeError, "has forked"):
                made.invoke()
            del made, delegate
            assert classes(interpreter(load_delegate(LIBRARY))) == list(range(10))
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert classes(made) == list(range(10))


def untrusted():
    """On a device whose every job hangs there is no interpreter: its first inference cannot be trusted."""
    delegate = load_delegate(LIBRARY)
    with refused(RuntimeError, "cannot be trusted"):
        interpreter(delegate)


if __name__ == "__main__":
    globals()[sys.argv[4]]()
