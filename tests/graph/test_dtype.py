"""DTypes against TensorFlow's."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from golden_programs import check, load
from tensorboard.compat.proto import types_pb2

from penstock.graph import dtype
from penstock.graph.dtype import DType, as_dtype

PROGRAMS = {row["id"]: row for row in load("semantics/dtypes.json")["cases"]}
CONSTANTS = {name: value for name, value in vars(dtype).items() if isinstance(value, DType)}
BASES = {name: value for name, value in CONSTANTS.items() if not value._is_ref_dtype}


@pytest.mark.parametrize("name", ["dtype_attributes", "as_dtype"])
def test_golden_program(name: str) -> None:
    check(PROGRAMS[name], dtype)


@pytest.mark.parametrize("constant", CONSTANTS.values(), ids=CONSTANTS)
def test_each_type_is_one_object(constant: DType) -> None:
    for same in (constant.name, constant.as_datatype_enum, constant):
        assert as_dtype(same) is constant
    assert DType(constant.as_datatype_enum) is constant
    assert pickle.loads(pickle.dumps(constant)) is copy.deepcopy(constant) is constant
    assert constant == constant.name
    assert constant == constant.as_datatype_enum == int(constant) == hash(constant)


@pytest.mark.parametrize("constant", BASES.values(), ids=BASES)
def test_reference_types(constant: DType) -> None:
    ref = constant._as_ref
    assert ref is getattr(dtype, f"{constant.name}_ref")
    assert ref._is_ref_dtype
    assert ref is not constant
    assert ref != constant
    assert ref.base_dtype is constant.base_dtype is constant
    assert ref.as_datatype_enum == constant.as_datatype_enum + 100
    assert ref._as_ref is ref
    for name in ("size", "is_integer", "is_floating", "is_complex", "is_bool", "is_quantized", "is_unsigned", "_numpy"):
        assert getattr(ref, name) is getattr(constant, name)


@pytest.mark.parametrize("constant", [c for c in BASES.values() if c.is_numpy_compatible], ids=str)
def test_numpy_round_trip(constant: DType) -> None:
    numpy = constant.as_numpy_dtype
    assert as_dtype(numpy) is as_dtype(np.dtype(numpy)) is constant
    assert as_dtype(np.zeros([2], numpy)) is constant
    assert constant == numpy


def test_enums_are_those_of_the_proto() -> None:
    spelling = {"float": "float32", "double": "float64", "half": "float16"}
    for name, number in types_pb2.DataType.items():
        lower = name.removeprefix("DT_").lower()
        base, ref = lower.removesuffix("_ref"), lower.endswith("_ref")
        if base != "invalid" and number in dtype._BY_ENUM:
            assert DType(number).name == spelling.get(base, base) + "_ref" * ref


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float, dtype.float32),
        (bool, dtype.bool),
        (object, dtype.string),
        (np.str_, dtype.string),
        (np.dtype("S5"), dtype.string),
        (np.dtype("U3"), dtype.string),
        (np.dtype(">f4"), dtype.float32),
        (np.longlong, dtype.int64),
        (np.ulonglong, dtype.uint64),
        (ml_dtypes.bfloat16, dtype.bfloat16),
        ("half_ref", dtype.float16_ref),
        ("double", dtype.float64),
        (np.array(3.0), dtype.float64),
        (np.float32(0.5), dtype.float32),
    ],
    ids=str,
)
def test_as_dtype(value: Any, expected: DType) -> None:
    assert as_dtype(value) is expected


@pytest.mark.parametrize(
    "value",
    [int, str, bytes, complex, None, "<f4", "int", "x", 0, 99, 200, [1], np.datetime64, np.dtype("M8"), object()],
    ids=lambda value: str(value) if type(value) is not object else "object",
)
def test_as_dtype_refuses(value: Any) -> None:
    with pytest.raises(TypeError, match="as_dtype"):
        as_dtype(value)
    assert value != dtype.float32


def test_invalid_enum() -> None:
    with pytest.raises(TypeError, match="999"):
        DType(999)


def test_compatibility() -> None:
    assert dtype.float32.is_compatible_with(dtype.float32_ref)
    assert not dtype.float32_ref.is_compatible_with("float32")
    assert not dtype.float32.is_compatible_with(dtype.float64)
    with pytest.raises(TypeError):
        dtype.float32.is_compatible_with("x")


def test_real_dtype() -> None:
    assert dtype.complex64.real_dtype is dtype.complex64_ref.real_dtype is dtype.float32
    assert dtype.complex128.real_dtype is dtype.float64
    assert dtype.int32.real_dtype is dtype.int32


def test_range() -> None:
    assert (dtype.int4.min, dtype.int4.max) == (-8, 7)
    assert (dtype.uint64.min, dtype.uint64.max) == (0, 2**64 - 1)
    assert float(dtype.float8_e4m3fn.max) == 448
    assert dtype.float32.min == np.finfo(np.float32).min
    assert dtype.int8.limits == (0, 127)
    assert dtype.uint8_ref.limits == (0, 255)
    assert dtype.float64.limits == (0, 1)
    assert dtype.bool.limits == (0, True)
    for undefined in (dtype.float16, dtype.complex64, dtype.string, dtype.int4):
        with pytest.raises(ValueError, match="limits"):
            _ = undefined.limits


def test_runtime_types_have_no_numpy_type() -> None:
    with pytest.raises(TypeError, match="resource"):
        _ = dtype.resource.as_numpy_dtype
