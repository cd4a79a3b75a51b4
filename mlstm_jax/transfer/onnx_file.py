"""An mLSTM as an ONNX file, with its state as input and output, for programs without JAX.

::

    bytes    uint8 [B, T]     of any number of texts, each followed by padding of any value
    lengths  int64 [B]        how many of them belong to each text
    h, c     float32 [B, L, H]  before them; zero at the start of a text

    logits   float32 [B, T, 256]  of the byte after each
    h_after, c_after, mean_h  float32 [B, L, H]  after the last byte; the mean is over these bytes
    h_each, c_each  float32 [B, T, L, H]  after each byte
    probabilities  float32 [B, K]  of a classifier, for texts that begin and end in these bytes

The metadata have one JSON text, `mlstm_jax`: cleaning, source, versions, and of a classifier its
state and classes. A layer is one step of an ONNX Scan over time, which takes any B and
T. The matrices are folded: weight normalisation, and the tables of the first layer (mlstm.py).
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from mlstm_jax import __version__, environment, output
from mlstm_jax.errors import KnownError, UserError, extra, require
from mlstm_jax.model.language_model import LanguageModel
from mlstm_jax.model.ops import Precision
from mlstm_jax.run import Run
from mlstm_jax.transfer.classifier import Classifier

OPSET = 17  # with IR 8: onnxruntime since 1.12
_IR = 8
_MOST_BYTES = 2**31 - 2**20  # of a protobuf
# Of the largest value of an output. An error in a matrix of 7 bits is 1/126 of its largest number.
_TOLERANCES = {"float32": 1e-5, "int8": 0.5}
# Cleaned, a text for every kind of cleaning.
_TEXT = "ACDEFGHIKLMNPQRSTVWY" * 2

_KEY = "mlstm_jax"
_OUTPUTS = {"h": "h_after", "c": "c_after", "mean_h": "mean_h"}  # of the states after a text


class _Nodes:
    """Nodes of a graph and the constants that they use, which belong to the outer graph."""

    def __init__(self, graph: str, constants: dict[str, Any], dtype: str) -> None:
        self.nodes: list[Any] = []
        self._graph = graph
        self._constants = constants
        self._dtype = dtype

    def constant(self, value: Any, kind: Any = np.float32) -> str:
        """Return the name of a new constant."""
        name = f"constant_{len(self._constants)}"
        self._constants[name] = np.array(value, kind, order="C")
        return name

    def many(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        """Add a node; return the names of its outputs."""
        from onnx import helper

        # Unique in all graphs, as a name of the outer graph is seen in the inner.
        names = [f"{self._graph}_{len(self.nodes)}_{op}_{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        (name,) = self.many(op, *inputs, **attributes)
        return name

    def product(self, x: str, w_IO: NDArray[Any]) -> str:
        """Return x W; in int8 with a scale for each column, and for all rows of x."""
        if self._dtype == "float32":
            return self("MatMul", x, self.constant(w_IO))
        # Of 7 bits: AVX2 adds two products in 16 bits, which more would overflow.
        scale_O = np.maximum(np.abs(w_IO).max(axis=0), 1e-30) / 63
        quantised, scale, zero = self.many("DynamicQuantizeLinear", x, outputs=3)
        whole = self.constant(np.rint(w_IO / scale_O), np.int8)
        sums = self("Cast", self("MatMulInteger", quantised, whole, zero), to=1)
        return self("Mul", sums, self("Mul", scale, self.constant(scale_O)))


def _step(nodes: _Nodes, weights: Any, x: str, h: str, c: str, is_read_B1: str) -> tuple[str, str]:
    """Add a step of a layer, see model/mlstm.py; return h and c after it."""
    wmh = weights["wmh"]
    if x == "byte":
        mx = nodes("Gather", nodes.constant(weights["wmx"]), x)
        zx = nodes("Gather", nodes.constant(weights["wx"] + weights["b"]), x)
    else:
        mx = nodes.product(x, weights["wmx"])
        zx = nodes("Add", nodes.product(x, weights["wx"]), nodes.constant(weights["b"]))
    m = nodes("Mul", mx, nodes.product(h, wmh))
    z = nodes("Add", zx, nodes.product(m, weights["wh"]))
    hidden = wmh.shape[0]
    sizes = nodes.constant([3 * hidden, hidden], np.int64)
    sigmoids, update = nodes.many("Split", z, sizes, outputs=2, axis=-1)
    i, f, o = nodes.many("Split", nodes("Sigmoid", sigmoids), outputs=3, axis=-1)
    kept = nodes("Mul", f, c)
    new = nodes("Mul", i, nodes("Tanh", update))
    after_c = nodes("Add", kept, new)
    after_h = nodes("Mul", o, nodes("Tanh", after_c))
    return nodes("Where", is_read_B1, after_h, h), nodes("Where", is_read_B1, after_c, c)


def _inner(nodes: _Nodes, run: Run) -> Any:
    """The graph of one byte: h and c of all layers, the byte, is_read → twice h and c after it."""
    from onnx import TensorProto, helper

    model = run.config.model
    axis_1 = nodes.constant([1], np.int64)
    is_read_B1 = nodes("Unsqueeze", "is_read", axis_1)
    x = "byte"
    h = []
    c = []
    layers = LanguageModel(model, Precision()).reading_weights(run.params, several_rows=False)
    for number, weights in enumerate(layers):
        layer = nodes.constant(number, np.int64)
        before_h = nodes("Gather", "h_before", layer, axis=1)
        before_c = nodes("Gather", "c_before", layer, axis=1)
        x, after_c = _step(nodes, weights, x, before_h, before_c, is_read_B1)
        h.append(nodes("Unsqueeze", x, axis_1))
        c.append(nodes("Unsqueeze", after_c, axis_1))
    carried = [nodes("Concat", *h, axis=1), nodes("Concat", *c, axis=1)]
    each = [nodes("Identity", carried[0]), nodes("Identity", carried[1])]
    inputs = [_value("h_before", "B", *model.shape), _value("c_before", "B", *model.shape)]
    inputs.append(_value("byte", "B", kind=TensorProto.INT32))
    inputs.append(_value("is_read", "B", kind=TensorProto.BOOL))
    outputs = [_value(name, "B", *model.shape) for name in (*carried, *each)]
    return helper.make_graph(nodes.nodes, "step", inputs, outputs)


def _value(name: str, *shape: int | str, kind: int = 1) -> Any:
    """An input or output of a graph; kind 1 is float32."""
    from onnx import helper

    return helper.make_tensor_value_info(name, kind, shape)


def _model(run: Run, dtype: str, classifier: Classifier | None) -> Any:
    """Return the ONNX model, see `save`."""
    from onnx import TensorProto, helper, numpy_helper

    model = run.config.model
    constants: dict[str, Any] = {}
    inner = _inner(_Nodes("step", constants, dtype), run)
    outer = _Nodes("text", constants, dtype)
    zero = outer.constant(0, np.int64)
    one = outer.constant(1, np.int64)
    axis_1 = outer.constant([1], np.int64)
    last_axes = outer.constant([-2, -1], np.int64)
    place_T = outer("Range", zero, outer("Gather", outer("Shape", "bytes"), one), one)
    is_read = outer("Less", place_T, outer("Unsqueeze", "lengths", axis_1))
    h_after, c_after, h_each, c_each = outer.many(
        "Scan", "h", "c", outer("Cast", "bytes", to=TensorProto.INT32), is_read, outputs=4,
        body=inner, num_scan_inputs=2, scan_input_axes=[1, 1], scan_output_axes=[1, 1],
    )  # fmt: skip
    mask = outer("Unsqueeze", outer("Cast", is_read, to=TensorProto.FLOAT), last_axes)
    sums = outer("ReduceSum", outer("Mul", h_each, mask), axis_1, keepdims=0)
    count = outer("Cast", outer("Max", "lengths", one), to=TensorProto.FLOAT)
    mean_h = outer("Div", sums, outer("Unsqueeze", count, last_axes))
    top_h = outer("Gather", h_each, outer.constant(model.layers - 1, np.int64), axis=2)
    logits = outer("MatMul", top_h, outer.constant(run.params["decoder_kernel"]))
    logits = outer("Add", logits, outer.constant(run.params["decoder_bias"]))
    made = {"logits": logits, "h_after": h_after, "c_after": c_after, "mean_h": mean_h}
    made |= {"h_each": h_each, "c_each": c_each}
    outputs = [_value("logits", "B", "T", 256)]
    outputs += [_value(name, "B", *model.shape) for name in ("h_after", "c_after", "mean_h")]
    outputs += [_value(name, "B", "T", *model.shape) for name in ("h_each", "c_each")]
    if classifier:
        parts = []
        for state, layer in classifier.about.layers(model):
            number = outer.constant(layer, np.int64)
            parts.append(outer("Gather", made[_OUTPUTS[state]], number, axis=1))
        features = outer("Concat", *parts, axis=1)
        linear = outer("MatMul", features, outer.constant(classifier.weights_KD.T))
        scores = outer("Add", linear, outer.constant(classifier.intercepts_K))
        yes = outer("Softmax" if classifier.softmax else "Sigmoid", scores)
        if len(classifier.classes) == 2:
            yes = outer("Concat", outer("Sub", outer.constant(1), yes), yes, axis=1)
        else:
            yes = outer("Div", yes, outer("ReduceSum", yes, axis_1))
        made["probabilities"] = yes
        outputs.append(_value("probabilities", "B", len(classifier.classes)))
    for name, value in made.items():
        outer.nodes.append(helper.make_node("Identity", [value], [name]))
    inputs = [_value("bytes", "B", "T", kind=TensorProto.UINT8)]
    inputs.append(_value("lengths", "B", kind=TensorProto.INT64))
    inputs += [_value("h", "B", *model.shape), _value("c", "B", *model.shape)]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    return helper.make_model(
        helper.make_graph(outer.nodes, "mlstm", inputs, outputs, tensors),
        opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR, producer_name="mlstm_jax",
        producer_version=__version__,
    )  # fmt: skip


def _difference(run: Run, classifier: Classifier | None, file: bytes) -> float:
    """Return the largest difference of an output from JAX's, by the output's largest value."""
    import onnxruntime

    model = run.config.model
    (text,) = run.cleaned([_TEXT])
    bytes_BT = np.frombuffer(text * 2, np.uint8).reshape(2, -1)
    lengths_B = np.array([len(text), 13])
    is_read_BT = np.arange(len(text))[None] < lengths_B[:, None]
    reader = LanguageModel(model, Precision())
    apply = jax.jit(reader.apply, static_argnames="return_states")
    read = apply(
        {"params": run.params}, bytes_BT, reader.init_carry(2), ~is_read_BT, return_states="each"
    )

    def of_text(x: Any) -> Any:
        return np.where(np.expand_dims(is_read_BT, tuple(range(2, x.ndim))), x, 0)

    expected = {
        "logits": of_text(read.logits_BTV),
        "h_each": of_text(read.states.h),
        "c_each": of_text(read.states.c),
        "h_after": np.asarray(read.carry.h),
        "c_after": np.asarray(read.carry.c),
        "mean_h": of_text(read.states.h).sum(axis=1) / lengths_B[:, None, None],
    }
    if classifier:
        layers = classifier.about.layers(model)
        parts = [expected[_OUTPUTS[state]][:, layer] for state, layer in layers]
        expected["probabilities"] = classifier.probabilities(np.concatenate(parts, axis=1))
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    zero = np.zeros((2, *model.shape), np.float32)
    inputs = {"bytes": bytes_BT, "lengths": lengths_B, "h": zero, "c": zero}
    outputs = session.run(list(expected), inputs)
    differences = []
    for (name, wanted), found in zip(expected.items(), outputs, strict=True):
        if name in ("logits", "h_each", "c_each"):
            found = of_text(found)
        if name == "logits":  # a byte without a symbol has -10,000, no scale for the others
            found = np.maximum(found, -100)
            wanted = np.maximum(wanted, -100)
        differences.append(float(np.abs(found - wanted).max() / np.abs(wanted).max()))
    return max(differences)


def save(
    path: Path,
    run: Run,
    source: str,
    dtype: str = "float32",
    classifier: Classifier | None = None,
) -> None:
    """Write an ONNX file atomically, after onnxruntime has given the same as JAX with it.

    `source`, where the model comes from, is for the metadata; `dtype` is that of the matrices in
    the loop over time. A classifier of this model gives the output `probabilities`.

    Raises:
        UserError: the model is no mLSTM, or too large; the dtype is another; onnx or onnxruntime is
            not installed; or the classifier has words.
        KnownError: onnxruntime computes something else, or the file cannot be written.
    """
    environment.require_own_jax()
    require(dtype in _TOLERANCES, "dtype", dtype, "float32 or int8 of an .onnx")
    model = run.config.model
    if model.title != "mLSTM":
        raise UserError(f"format onnx is for an mLSTM, and this is {model.cli_name}.")
    if classifier:
        classifier.require_no_words("format onnx")
    with extra("onnx", "format onnx needs onnx and onnxruntime"):
        import onnx
        import onnxruntime
    size = 4 * sum(np.size(x) for x in jax.tree.leaves(run.params))
    if size > _MOST_BYTES:
        raise UserError(f"an ONNX file has at most 2 GiB, and the parameters have {size:,} bytes.")
    onnx_model = _model(run, dtype, classifier)
    largest = _difference(run, classifier, onnx_model.SerializeToString())
    versions = f"opset {OPSET}, onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}"
    if not largest <= _TOLERANCES[dtype]:
        raise KnownError(
            f"{path}: is not written: with {versions} its outputs differ from JAX's by "
            f"{largest:.1e} of the largest value; try another version of onnxruntime."
        )
    about: dict[str, Any] = {"cleaning": run.cleaning, "source": source, "dtype": dtype}
    about |= {"versions": versions, "difference": largest}
    if classifier:
        about |= {"state": classifier.about.state, "classes": classifier.classes}
    onnx.helper.set_model_props(onnx_model, {_KEY: json.dumps(about, sort_keys=True)})
    with output.atomic_file(path) as partial:
        partial.write_bytes(onnx_model.SerializeToString())


def read_about(path: Path) -> dict[str, Any]:
    """Return the metadata of a file that `save` wrote."""
    import onnx

    (entry,) = onnx.load(path).metadata_props
    about: dict[str, Any] = json.loads(entry.value)
    return about
