"""Each public function of the V2 API takes TensorFlow's parameters: by name, and by position."""

from __future__ import annotations

import enum
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

import penstock as tf

NAMES: dict[str, list[str]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "v2" / "signatures.json").read_text(encoding="utf-8")
)

# Names that penstock does not have yet, as patterns, and why.
LATER = {
    r"ragged\.cross.*|ragged_.*|data\.experimental\.dense_to_ragged_batch": "rarer functions of ragged tensors",
    r"experimental\..*": "extension types, dispatch, strict mode, tf.experimental.numpy",
    r"summary\..*": "summaries that are written without a session",
    r"linalg\.LinearOperator.*|linalg\.experimental\..*": "linear operators",
    r"linalg\..*|eig|eigvals": "eigenvalues of matrices that are not symmetric, banded matrices",
    r"math\..*|approx_top_k|.*approx_m.*_k|nn\.isotonic_regression": "rarer functions and approximate searches",
    r"signal\..*|.*fftnd": "Fourier transforms over chosen axes, and windows for audio codecs",
    r"nn\.(RNNCell.*|collapse_repeated|ctc_.*)|nn\.experimental\..*": "cells of Keras, the second generation of CTC",
    r"nn\.(compute_average_loss|scale_regularization_loss)": "losses that know their strategy",
    r"image\..*|io\.decode_(jxl|webp)": "stateless augmentation, and formats that Pillow is not asked for",
    r"io\.(decode|encode)_proto|audio\..*": "messages and sound files inside of graphs",
    r"data\..*|OptionalSpec|NoneTensorSpec": "parts of tf.data that are services, SQL, or for debugging",
    r"distribute\..*": "collectives, TPUs, resolvers for other schedulers",
    r"config\..*": "settings of TensorFlow's own executor and optimizer",
    r"debugging\..*": "settings of tracebacks and dumps",
    r"profiler\..*": "the profiler: jax has one",
    r"quantization\.experimental\..*": "quantization of saved models",
    r"saved_model\.experimental\..*|train\..*": "views and policies of checkpoints",
    r"sysconfig\..*|load_library|load_op_library": "C++ headers and libraries, which penstock does not have",
    r"test\..*": "benchmarks and clusters of tests",
    r"types\..*|autodiff\.GradientTape": "names for annotations",
    r"xla\..*": "older ways to ask for compilation",
    r"sparse\.(bincount|map_values|sampled_addmm)": "rarer sparse functions",
    r"random\..*|random_index_shuffle": "rarer random functions",
    r"CriticalSection|check_pinned|conv|conv2d_backprop_.*|nondifferentiable_batch_function": "rarer ops",
}
# Names whose parameters differ, and why.
DIFFERENT = {
    "RaggedTensor": "it is made by its class methods",
    "data.DatasetSpec": "datasets of datasets have no shape",
    "data.FixedLengthRecordDataset": "datasets are not named",
    "data.TFRecordDataset": "datasets are not named",
    "data.TextLineDataset": "datasets are not named",
    "data.experimental.CsvDataset": "exclude_cols is missing",
    "data.experimental.RandomDataset": "rerandomize_each_iteration is missing",
    "data.experimental.bucket_by_sequence_length": "passes its arguments on to the method of the same name",
    "data.experimental.group_by_window": "passes its arguments on to the method of the same name",
    "data.experimental.ignore_errors": "log_warning is missing",
    "data.experimental.make_csv_dataset": "encoding is missing",
    "data.experimental.parse_example_dataset": "deterministic is missing",
    "data.experimental.rejection_resample": "passes its arguments on to the method of the same name",
    "data.experimental.save": "is the method of the same name",
    "DType": "types are made by penstock alone",
    "dtypes.DType": "types are made by penstock alone",
    "summary.create_file_writer": "experimental_mesh is missing",
    "io.TFRecordOptions": "takes its further parameters as keywords",
}


def find(name: str) -> Any:
    """The function or class of a public name, or None."""
    found: Any = tf
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            return None
    return found


def test_names_that_are_missing_are_listed() -> None:
    missing = [name for name in NAMES if find(name) is None]
    assert [name for name in missing if not any(re.fullmatch(pattern, name) for pattern in LATER)] == []


@pytest.mark.parametrize("namespace", sorted({name.rpartition(".")[0] for name in NAMES}))
def test_parameters(namespace: str) -> None:
    wrong = {}
    for name, wanted in NAMES.items():
        found = find(name) if name.rpartition(".")[0] == namespace and name not in DIFFERENT else None
        if found is not None and not (isinstance(found, type) and issubclass(found, enum.Enum)):
            ours = list(inspect.signature(found).parameters)
            if ours[: len(wanted)] != wanted:
                wrong[name] = ours, wanted
    assert wrong == {}


@pytest.mark.parametrize("name", DIFFERENT)
def test_differences_are_real(name: str) -> None:
    ours = list(inspect.signature(find(name)).parameters)
    assert ours[: len(NAMES[name])] != NAMES[name]
