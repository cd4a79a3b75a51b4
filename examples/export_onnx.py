"""Export an mLSTM as an ONNX file: programs then need onnxruntime, not JAX or mlstm_jax.

    pip install '.[onnx]'
    python examples/export_onnx.py reviews-1024 reviews.onnx --classifier reviews-1024/sentiment
    python examples/label_with_onnx.py reviews.onnx new.csv labels.csv

A program in Python needs less with `mlstm-jax export NAME.pyz`: NumPy alone. For B texts of T bytes
and L layers of H units the file has the inputs

    bytes      uint8 [B, T]       each text, then padding of any value
    lengths    int64 [B]          the length of each text in bytes
    h, c       float32 [B, L, H]  the state before the first byte: zero, or that after a piece

and the outputs

    logits            float32 [B, T, 256]  scores of the next byte, after each byte
    h_after, c_after  float32 [B, L, H]    the state after the last byte of each text
    mean_h            float32 [B, L, H]    the mean of h over these bytes
    probabilities     float32 [B, K]       with a classifier of states; NaN of a blank text

The metadata have one JSON text, `mlstm_jax`: the cleaning of texts, and the classifier's classes.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import mlstm_jax
from mlstm_jax.transfer.classifier import Classifier, load_classifier

OPSET = 17
TEXT = "It broke after a week; it is not worth its price, and I do not recommend it."
TOLERANCE = 1e-4  # of an output's largest value
OUTPUTS = {"h": "h_after", "c": "c_after", "mean_h": "mean_h"}


class Nodes:
    """The nodes of a graph, and the constants of all graphs."""

    def __init__(self, graph: str, constants: dict[str, Any]) -> None:
        self.nodes: list[Any] = []
        self.graph = graph
        self.constants = constants

    def constant(self, value: Any, kind: Any = np.float32) -> str:
        """Return the name of a new constant."""
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.array(value, kind, order="C")
        return name

    def many(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        """Add a node; return the names of its outputs."""
        # Unique in all graphs, as a name of the outer graph is seen in the inner.
        names = [f"{self.graph}_{len(self.nodes)}_{op}_{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        (name,) = self.many(op, *inputs, **attributes)
        return name


def value(name: str, *shape: int | str, kind: int = TensorProto.FLOAT) -> Any:
    """An input or output of a graph."""
    return helper.make_tensor_value_info(name, kind, shape)


def layer_step(nodes: Nodes, weights: Any, x: str, h: str, c: str) -> tuple[str, str]:
    """Add a step of a layer, as in mlstm_jax/model/mlstm.py; return h and c after it."""
    if x == "byte":
        mx = nodes("Gather", nodes.constant(weights["wmx"]), x)
        zx = nodes("Gather", nodes.constant(weights["wx"] + weights["b"]), x)
    else:
        mx = nodes("MatMul", x, nodes.constant(weights["wmx"]))
        zx = nodes("MatMul", x, nodes.constant(weights["wx"]))
        zx = nodes("Add", zx, nodes.constant(weights["b"]))
    m = nodes("Mul", mx, nodes("MatMul", h, nodes.constant(weights["wmh"])))
    z = nodes("Add", zx, nodes("MatMul", m, nodes.constant(weights["wh"])))
    i, f, o, u = nodes.many("Split", z, outputs=4, axis=-1)
    kept = nodes("Mul", nodes("Sigmoid", f), c)
    after_c = nodes("Add", kept, nodes("Mul", nodes("Sigmoid", i), nodes("Tanh", u)))
    return nodes("Mul", nodes("Sigmoid", o), nodes("Tanh", after_c)), after_c


def byte_graph(nodes: Nodes, shape: tuple[int, int], layers: list[Any]) -> Any:
    """One byte: h, c, the byte, is_read → h and c after it, and h once more to keep."""
    axis_1 = nodes.constant([1], np.int64)
    is_read_B1 = nodes("Unsqueeze", "is_read", axis_1)
    x = "byte"
    after: dict[str, list[str]] = {"h": [], "c": []}
    for number, weights in enumerate(layers):
        layer = nodes.constant(number, np.int64)
        h = nodes("Gather", "h_before", layer, axis=1)
        c = nodes("Gather", "c_before", layer, axis=1)
        new_h, new_c = layer_step(nodes, weights, x, h, c)
        x = nodes("Where", is_read_B1, new_h, h)
        after["h"].append(nodes("Unsqueeze", x, axis_1))
        after["c"].append(nodes("Unsqueeze", nodes("Where", is_read_B1, new_c, c), axis_1))
    carried = [nodes("Concat", *parts, axis=1) for parts in after.values()]
    inputs = [value("h_before", "B", *shape), value("c_before", "B", *shape)]
    inputs.append(value("byte", "B", kind=TensorProto.INT32))
    inputs.append(value("is_read", "B", kind=TensorProto.BOOL))
    outputs = [value(name, "B", *shape) for name in (*carried, nodes("Identity", carried[0]))]
    return helper.make_graph(nodes.nodes, "step", inputs, outputs)


def probabilities(
    nodes: Nodes, classifier: Classifier, model: mlstm_jax.TrainedModel, is_read: str
) -> str:
    """Add what a classifier answers; NaN where no byte that is read is above a space."""
    parts = []
    for state, layer in classifier.about.layers(model.config.model):
        number = nodes.constant(layer, np.int64)
        parts.append(nodes("Gather", OUTPUTS[state], number, axis=1))
    features = nodes("Concat", *parts, axis=1)
    linear = nodes("MatMul", features, nodes.constant(classifier.weights_KD.T))
    scores = nodes("Add", linear, nodes.constant(classifier.intercepts_K))
    shares = nodes("Softmax" if classifier.softmax else "Sigmoid", scores)
    if len(classifier.classes) == 2:
        shares = nodes("Concat", nodes("Sub", nodes.constant(1), shares), shares, axis=1)
    else:
        sums = nodes("ReduceSum", shares, nodes.constant([1], np.int64))
        shares = nodes("Div", shares, sums)
    is_letter = nodes("Greater", "bytes", nodes.constant(32, np.uint8))
    seen = nodes("Cast", nodes("And", is_read, is_letter), to=TensorProto.FLOAT)
    has_text = nodes("Greater", nodes("ReduceMax", seen, axes=[1]), nodes.constant(0))
    return nodes("Where", has_text, shares, nodes.constant(np.nan))


def onnx_model(model: mlstm_jax.TrainedModel, classifier: Classifier | None) -> Any:
    """The ONNX model; see the top of this file."""
    module, params = model.flax
    shape = model.config.model.shape
    constants: dict[str, Any] = {}
    layers = module.reading_weights(params, several_rows=False)
    body = byte_graph(Nodes("step", constants), shape, layers)
    nodes = Nodes("text", constants)
    one = nodes.constant(1, np.int64)
    axis_1 = nodes.constant([1], np.int64)
    count_T = nodes("Gather", nodes("Shape", "bytes"), one)
    place_T = nodes("Range", nodes.constant(0, np.int64), count_T, one)
    is_read = nodes("Less", place_T, nodes("Unsqueeze", "lengths", axis_1))
    h, c, h_each = nodes.many(
        "Scan", "h", "c", nodes("Cast", "bytes", to=TensorProto.INT32), is_read, outputs=3,
        body=body, num_scan_inputs=2, scan_input_axes=[1, 1], scan_output_axes=[1],
    )  # fmt: skip
    mask = nodes("Cast", is_read, to=TensorProto.FLOAT)
    mask = nodes("Unsqueeze", mask, nodes.constant([-2, -1], np.int64))
    sums = nodes("ReduceSum", nodes("Mul", h_each, mask), axis_1, keepdims=0)
    count = nodes("Cast", nodes("Max", "lengths", one), to=TensorProto.FLOAT)
    count = nodes("Unsqueeze", count, nodes.constant([-2, -1], np.int64))
    top_h = nodes("Gather", h_each, nodes.constant(shape[0] - 1, np.int64), axis=2)
    logits = nodes("MatMul", top_h, nodes.constant(params["decoder_kernel"]))
    logits = nodes("Add", logits, nodes.constant(params["decoder_bias"]))
    made = {"logits": logits, "h_after": h, "c_after": c, "mean_h": nodes("Div", sums, count)}
    outputs = [value("logits", "B", "T", 256)]
    outputs += [value(name, "B", *shape) for name in OUTPUTS.values()]
    for name, source in made.items():
        nodes.nodes.append(helper.make_node("Identity", [source], [name]))
    if classifier:
        answer = probabilities(nodes, classifier, model, is_read)
        nodes.nodes.append(helper.make_node("Identity", [answer], ["probabilities"]))
        outputs.append(value("probabilities", "B", len(classifier.classes)))
    inputs = [value("bytes", "B", "T", kind=TensorProto.UINT8)]
    inputs.append(value("lengths", "B", kind=TensorProto.INT64))
    inputs += [value("h", "B", *shape), value("c", "B", *shape)]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes.nodes, "mlstm", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def difference(
    file: bytes, model: mlstm_jax.TrainedModel, classifier: Classifier | None
) -> dict[str, float]:
    """The largest difference of each output from the package's, by the output's largest value."""
    texts = [TEXT, "Bad."]
    expected = {}
    for state, name in OUTPUTS.items():
        read = model.encode(texts, state, all_layers=True)
        expected[name] = read.reshape(len(texts), *model.config.model.shape)
    if classifier:
        features = model.encode(
            texts, classifier.about.state, all_layers=classifier.about.all_layers
        )
        expected["probabilities"] = classifier.probabilities(features)
    cleaned = [model.cleaned(text) for text in texts]
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    found = session.run(["logits", *expected], inputs_of(cleaned, model.config.model.shape))
    logits_TV = found.pop(0)[0, : len(cleaned[0])].astype(np.float64)
    read_T = np.frombuffer(cleaned[0], np.uint8)[1:]
    shares_TV = np.exp(logits_TV - logits_TV.max(axis=1, keepdims=True))
    shares_TV /= shares_TV.sum(axis=1, keepdims=True)
    expected["logits"] = model.log_probabilities(TEXT)
    found.append(np.log(shares_TV[np.arange(len(read_T)), read_T]))
    differences = {}
    for (name, wanted), array in zip(expected.items(), found, strict=True):
        differences[name] = float(np.abs(array - wanted).max() / np.abs(wanted).max())
    return differences


def inputs_of(texts: list[bytes], shape: tuple[int, int]) -> dict[str, Any]:
    """The inputs for some cleaned texts, each from a zero state."""
    lengths_B = np.array([len(text) for text in texts])
    bytes_BT = np.zeros((len(texts), max(1, lengths_B.max())), np.uint8)
    for row, text in zip(bytes_BT, texts, strict=True):
        row[: len(text)] = np.frombuffer(text, np.uint8)
    zero = np.zeros((len(texts), *shape), np.float32)
    return {"bytes": bytes_BT, "lengths": lengths_B, "h": zero, "c": zero}


def export(path: Path, model: mlstm_jax.TrainedModel, classifier: Classifier | None) -> float:
    """Write a file, after onnxruntime has given the same as the package; return the difference."""
    if model.config.model.title != "mLSTM":
        raise SystemExit(f"this is for an mLSTM, and the model is a {model.config.model.title}.")
    if classifier:
        classifier.require_no_words("an ONNX file")
    made = onnx_model(model, classifier)
    largest = max(difference(made.SerializeToString(), model, classifier).values())
    if not largest <= TOLERANCE:
        raise SystemExit(f"onnxruntime differs by {largest:.1e} of the largest value.")
    about: dict[str, Any] = {"cleaning": model.cleaning}
    if classifier:
        about["classes"] = classifier.classes
    helper.set_model_props(made, {"mlstm_jax": json.dumps(about)})
    onnx.save(made, path)
    return largest


def main(arguments: list[str] | None = None) -> None:
    """Export the model of a command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="run folder, or a model of the package")
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--classifier", type=Path, help="folder of `mlstm-jax transfer`")
    given = parser.parse_args(arguments)
    model = mlstm_jax.load(given.model, compute="fp32")
    classifier = load_classifier(given.classifier) if given.classifier else None
    largest = export(given.out, model, classifier)
    size = given.out.stat().st_size
    print(f"{given.out}: {size:,} bytes, within {largest:.1e} of the largest value")


if __name__ == "__main__":
    main()
