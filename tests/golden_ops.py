"""Golden op cases: a call of one public function each, with TensorFlow's values, names, static shapes and gradients.

    python tests/golden_ops.py [GROUP or CASE ID ...]

It lists the cases that do not agree, by aspect, with the reason.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from golden_programs import GOLDEN, load
from tolerances import LOG_GAMMA, limit

import penstock.v1 as tf

INDEX = load("ops/index.json")
CASES: dict[str, dict[str, Any]] = {case["id"]: case for case in INDEX["cases"]}
MODES: list[str] = INDEX["static_shape_modes"]

# Functions that sum products of their inputs, each input once in every product. Two machines round such a sum
# differently, and if large terms cancel out, the error is not small compared with the result.
SUMS_OF_PRODUCTS = {
    *(f"tf.{name}" for name in ("matmul", "einsum", "tensordot", "linalg.matvec")),
    *(
        f"tf.nn.{name}"
        for name in (
            "conv1d",
            "conv2d",
            "conv3d",
            "convolution",
            "atrous_conv2d",
            "depthwise_conv2d",
            "depthwise_conv2d_native",
            "separable_conv2d",
            "conv2d_transpose",
            "conv3d_transpose",
            "conv2d_backprop_input",
            "conv2d_backprop_filter",
            "xw_plus_b",
        )
    ),
}

# Functions of cases with subnormal numbers. TensorFlow treats these as 0 on a CPU, as XLA does, but not on a GPU.
OF_SUBNORMALS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"math/math_log_3": np.log}


@functools.cache
def _arrays(group: str) -> Any:
    return np.load(GOLDEN / "ops" / INDEX["files"][group])


def array(case: dict[str, Any], entry: dict[str, Any]) -> np.ndarray:
    """The recorded array of `entry` of a case."""
    if "strings" in entry:
        flat = np.array([s.encode("latin-1") for s in entry["strings"]] + [None], object)[:-1]
        return flat.reshape(entry["shape"])
    found: np.ndarray = _arrays(case["group"])[entry["key"]]
    return found.view(ml_dtypes.bfloat16) if entry.get("dtype") == "bfloat16" else found


Feeds = dict[tf.Tensor, np.ndarray]


class Built:
    """The graph of a case; `mode` decides how much is known of its inputs."""

    def __init__(self, case: dict[str, Any], mode: str = "full") -> None:
        self.case = case
        self.inputs: list[tf.Tensor] = []
        self.feeds: Feeds = {}
        for i, entry in enumerate(case["inputs"]):
            value, dtype = array(case, entry), tf.as_dtype(entry["dtype"])
            if entry.get("const"):
                self.inputs.append(tf.constant(value, dtype, name=f"in{i}"))
                continue
            shape: list[int | None] | None = list(entry["shape"])
            if mode == "unknown_rank":
                shape = None
            elif mode == "all_unknown":
                shape = [None] * len(entry["shape"])
            elif shape and (mode == "all_batch" or (mode == "first_batch" and not self.feeds)):
                shape[0] = None
            self.inputs.append(tf.placeholder(dtype, shape, name=f"in{i}"))
            self.feeds[self.inputs[-1]] = value
        args = [self._decode(a) for a in case["args"]]
        kwargs = {k: self._decode(v) for k, v in case["kwargs"].items()}
        self.outputs = dict(sorted(_leaves(case["out_structure"], _function(case["fn"])(*args, **kwargs))))

    def _decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._decode(v) for v in value]
        if isinstance(value, str) and value in ("$ellipsis", "$newaxis"):
            return Ellipsis if value == "$ellipsis" else tf.newaxis
        if not isinstance(value, dict):
            return value
        decoders = {
            "$in": lambda i: self.inputs[i],
            "$dtype": tf.as_dtype,
            "$sparse": lambda parts: tf.SparseTensor(*map(self._decode, parts)),
            "$tuple": lambda items: tuple(map(self._decode, items)),
            "$slice": lambda bounds: slice(*map(self._decode, bounds)),
        }
        for key, decode in decoders.items():
            if key in value:
                return decode(value[key])
        return {k: self._decode(v) for k, v in value.items()}


def _function(name: str) -> Any:
    if name == "Tensor.__getitem__":
        return lambda x, spec: x[tuple(spec) if isinstance(spec, list) else spec]
    root = operator if name.startswith("operator.") else tf
    return functools.reduce(getattr, name.split(".")[1:], root)


def _leaves(structure: Any, value: Any) -> list[tuple[int, Any]]:
    """The tensors of `value` with their numbers in the recorded structure."""
    if structure is None:
        assert value is None
        return []
    if isinstance(structure, str):
        return [(int(structure[1:]), value)]
    if isinstance(structure, list):
        return [leaf for s, v in zip(structure, value, strict=True) for leaf in _leaves(s, v)]
    if "$sparse" in structure:
        parts = [value.indices, value.values, value.dense_shape]
        return [leaf for s, v in zip(structure["$sparse"], parts, strict=True) for leaf in _leaves(s, v)]
    fields = structure["fields"]
    return [leaf for name, s in fields.items() for leaf in _leaves(s, getattr(value, name))]


def _rounding(case: dict[str, Any], session: tf.Session, fetch: tf.Tensor, feeds: Feeds) -> float | None:
    """The largest rounding error of a sum of products against TensorFlow's, which is rounded too; None for other cases.

    The function of the inputs' absolute values is the magnitude of the sums; the function of ones is their length.
    """
    dtype = fetch.dtype.as_numpy_dtype
    if case["fn"] not in SUMS_OF_PRODUCTS or dtype not in (np.float32, np.float64, np.complex64, np.complex128):
        return None
    factors = {tensor: value for tensor, value in feeds.items() if value.dtype.kind in "fc"}
    sizes = session.run(fetch, {**feeds, **{t: np.abs(v).astype(v.dtype) for t, v in factors.items()}})
    counts = session.run(fetch, {**feeds, **{t: np.ones_like(v) for t, v in factors.items()}})
    terms = float(np.abs(counts).max(initial=0))
    return limit(terms, sizes, dtype) + limit(terms, sizes, dtype, factors=0.0)


def _assert_close(
    case: dict[str, Any], found: Any, wanted: np.ndarray, what: str, rounding: float | None = None
) -> None:
    found = np.asarray(found)
    assert found.shape == wanted.shape, f"{what} has shape {found.shape}, TensorFlow's {wanted.shape}"
    if wanted.dtype.kind in "OSU":
        assert found.tolist() == wanted.tolist(), what
    elif wanted.dtype.kind in "bui":
        np.testing.assert_array_equal(found, wanted, err_msg=what)
    elif rounding is not None:
        np.testing.assert_allclose(found, wanted, rtol=0, atol=rounding, err_msg=what)
    else:
        half = {np.dtype(np.float16): 2e-3, np.dtype(ml_dtypes.bfloat16): 2e-2}.get(wanted.dtype)
        tolerance = case.get("tol") or half or 1e-5
        smallest = tolerance / 10
        if half:
            # A tanh just below 1 may be rounded to either side, half an eps apart: its derivative moves by twice that.
            smallest = float(ml_dtypes.finfo(wanted.dtype).eps)
            found, wanted = found.astype(np.float32), wanted.astype(np.float32)
        elif case["fn"] == "tf.math.lgamma":
            smallest = LOG_GAMMA
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=smallest, err_msg=what)


def check_outputs(case: dict[str, Any]) -> None:
    """Values and types of the outputs."""
    with tf.Graph().as_default(), tf.Session() as session:
        built = Built(case)
        outputs = case["outputs"]
        assert [built.outputs[k].dtype.base_dtype.name for k in range(len(outputs))] == [o["dtype"] for o in outputs]
        found = session.run([built.outputs[k] for k in range(len(outputs))], built.feeds)
        for k, (value, entry) in enumerate(zip(found, outputs, strict=True)):
            rounding = _rounding(case, session, built.outputs[k], built.feeds)
            _assert_close(case, value, _wanted(case, value, array(case, entry)), f"output {k}", rounding)


def _wanted(case: dict[str, Any], found: np.ndarray, recorded: np.ndarray) -> np.ndarray:
    """TensorFlow's value; if the input is subnormal and not treated as 0, the function's own."""
    if case["id"] not in OF_SUBNORMALS:
        return recorded
    x = array(case, case["inputs"][0])
    counts = (np.abs(x) < np.finfo(x.dtype).tiny) & (x != 0) & (found != recorded)
    return np.where(counts, OF_SUBNORMALS[case["id"]](np.where(counts, x, 1).astype(np.float64)), recorded)


def check_names(case: dict[str, Any]) -> None:
    """Default names and op types of the outputs."""
    with tf.Graph().as_default():
        built = Built(case)
        found = [(built.outputs[k].name, built.outputs[k].op.type) for k in range(len(case["outputs"]))]
        assert found == [(entry["tensor_name"], entry["op_type"]) for entry in case["outputs"]]


def check_static_shapes(case: dict[str, Any]) -> None:
    """Static shapes of the outputs, in all modes."""
    for mode in MODES:
        wanted = case["static_shapes"][mode]
        with tf.Graph().as_default():
            if isinstance(wanted, dict):
                try:
                    Built(case, mode)
                except Exception as error:
                    assert type(error).__name__ == wanted["raises"], f"{mode}: {error}"
                else:
                    raise AssertionError(f"{mode}: TensorFlow raises {wanted['raises']}")
                continue
            shapes = [built.shape for built in Built(case, mode).outputs.values()]
            found = [None if shape.rank is None else shape.as_list() for shape in shapes]
            assert found == wanted, f"{mode}: {found}, TensorFlow has {wanted}"


def check_gradients(case: dict[str, Any]) -> None:
    """Gradients of the outputs by the inputs."""
    recorded = case["grads"]
    with tf.Graph().as_default(), tf.Session() as session:
        built = Built(case)
        if "raises" in recorded:
            try:
                tf.gradients(list(built.outputs.values()), list(built.feeds))
            except Exception as error:
                assert type(error).__name__ == recorded["raises"], repr(error)
                return
            raise AssertionError(f"TensorFlow raises {recorded['raises']}")
        numbers = [int(k) for k in recorded["dy"]]
        upstream = [
            array(case, {"key": key, "dtype": case["outputs"][int(k)]["dtype"]}) for k, key in recorded["dy"].items()
        ]
        upstream_tensors = [tf.constant(dy) for dy in upstream]
        wanted = {int(i): entry for i, entry in recorded["dx"].items()}
        inputs = [built.inputs[i] for i in wanted]
        gradients = tf.gradients([built.outputs[k] for k in numbers], inputs, upstream_tensors)
        feeds = {**built.feeds, **dict(zip(upstream_tensors, upstream, strict=True))}
        for (i, entry), gradient in zip(wanted.items(), gradients, strict=True):
            if entry is None:
                assert gradient is None, f"gradient {i} is {gradient}, TensorFlow's None"
                continue
            assert gradient is not None, f"gradient {i} is None"
            dtype = case["inputs"][i]["dtype"]
            if entry["kind"] == "dense":
                assert isinstance(gradient, tf.Tensor), f"gradient {i} is {gradient}"
                value = session.run(gradient, built.feeds)
                recorded_value = array(case, {"key": entry["key"], "dtype": dtype})
                rounding = _rounding(case, session, gradient, feeds)
                _assert_close(case, value, recorded_value, f"gradient {i}", rounding)
            else:
                assert isinstance(gradient, tf.IndexedSlices), f"gradient {i} is {gradient}"
                value = session.run(tf.convert_to_tensor(gradient), built.feeds)
                _assert_close(case, value, array(case, {"key": entry["dense"], "dtype": dtype}), f"gradient {i}")


ASPECTS = {
    "outputs": check_outputs,
    "names": check_names,
    "static shapes": check_static_shapes,
    "gradients": check_gradients,
}


def cases_with(aspect: str) -> list[str]:
    """The ids of the cases that record `aspect`."""
    return [name for name, case in CASES.items() if aspect != "gradients" or "grads" in case]


def main(selected: list[str]) -> None:
    """Prints what does not agree."""
    for aspect, check in ASPECTS.items():
        names = [n for n in cases_with(aspect) if not selected or any(n.startswith(s) for s in selected)]
        failed = 0
        for name in names:
            try:
                check(CASES[name])
            except Exception as error:
                failed += 1
                text = " ".join(str(error).split())
                print(f"{aspect}: {name} {CASES[name]['fn']}: {type(error).__name__}: {text[:160]}", flush=True)
        print(f"{aspect}: {len(names) - failed} of {len(names)} agree", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
