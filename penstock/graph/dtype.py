"""Element types of tensors.

There is one `DType` object per type, so `is` compares them; `==` also accepts anything `as_dtype` does.

>>> as_dtype("float32") is float32, float32 == np.float32
(True, True)
"""

# The module defines names such as `bool`, hence `builtins.bool` in annotations.
from __future__ import annotations

import builtins
from typing import Any

import ml_dtypes
import numpy as np

_REF = 100  # A reference type's enum is its base type's plus this, as in TensorFlow's types.proto.

_BY_ENUM: dict[int, DType] = {}
# All keys that `as_dtype` looks up directly: enums, names, Python types, NumPy scalar types and dtypes.
_BY_ANY: dict[Any, DType] = {}


class DType:
    """The type of a tensor's elements, for example `float32`.

    A variable of the v1 API has a reference type such as `float32_ref`; `base_dtype` removes the reference.

    >>> float32.name, float32.size, float32.is_floating, float32_ref.base_dtype is float32
    ('float32', 4, True, True)
    """

    __slots__ = (
        "_as_ref",
        "_is_ref_dtype",
        "_numpy",
        "as_datatype_enum",
        "base_dtype",
        "is_bool",
        "is_complex",
        "is_floating",
        "is_integer",
        "is_numpy_compatible",
        "is_quantized",
        "is_unsigned",
        "name",
        "real_dtype",
        "size",
    )

    name: str
    as_datatype_enum: int
    size: int
    is_bool: builtins.bool
    is_complex: builtins.bool
    is_floating: builtins.bool
    is_integer: builtins.bool
    is_numpy_compatible: builtins.bool
    is_quantized: builtins.bool
    is_unsigned: builtins.bool
    base_dtype: DType
    real_dtype: DType
    _as_ref: DType
    _is_ref_dtype: builtins.bool
    _numpy: Any

    def __new__(cls, type_enum: int) -> DType:
        """The type with this enum: `DType(1) is float32`."""
        try:
            return _BY_ENUM[int(type_enum)]
        except KeyError:
            raise TypeError(f"DType: no type has the enum {type_enum!r}; see types.proto for the valid ones.") from None

    @property
    def as_numpy_dtype(self) -> Any:
        """The NumPy scalar type (a structured dtype for quantized types): `float32.as_numpy_dtype is np.float32`."""
        if self._numpy is None:
            raise TypeError(f"{self}: values of this type live in the runtime and have no NumPy type.")
        return self._numpy

    @property
    def min(self) -> Any:
        """The smallest finite value: `int8.min == -128`."""
        return self._extreme("min")

    @property
    def max(self) -> Any:
        """The largest finite value: `int8.max == 127`."""
        return self._extreme("max")

    def _extreme(self, which: str) -> Any:
        if self.is_floating:
            return getattr(ml_dtypes.finfo(self._numpy), which)  # type: ignore[no-untyped-call]
        if self.is_integer:
            return int(getattr(ml_dtypes.iinfo(self._numpy), which))  # type: ignore[no-untyped-call]
        raise TypeError(f"{self}: only integer and floating types have a {which}imum value.")

    @property
    def limits(self) -> tuple[Any, Any]:
        """The range of intensities when the type holds images: `uint8.limits == (0, 255)`."""
        base = self.base_dtype
        if base is bool:
            return 0, True
        if base is float32 or base is float64:
            return 0, 1
        if base.is_integer and base.name not in _NO_LIMITS:
            return 0, base.max
        raise ValueError(f"{self}: the type has no defined limits.")

    def is_compatible_with(self, other: Any) -> builtins.bool:
        """Tells if a tensor of type `other` may be used where this type is expected.

        >>> float32.is_compatible_with(float32_ref), float32_ref.is_compatible_with(float32)
        (True, False)
        """
        other = as_dtype(other)
        return self is other or self is other.base_dtype

    @property
    def _type_enum(self) -> int:
        return self.as_datatype_enum

    def __eq__(self, other: object) -> builtins.bool:
        if self is other:
            return True
        if other is None or other.__class__ is DType:
            return False
        try:
            return self is as_dtype(other)
        except TypeError:
            return False

    def __hash__(self) -> int:
        return self.as_datatype_enum

    def __int__(self) -> int:
        return self.as_datatype_enum

    def __repr__(self) -> str:
        return f"tf.{self.name}"

    def __str__(self) -> str:
        return f"<dtype: '{self.name}'>"

    def __reduce__(self) -> tuple[Any, ...]:
        return as_dtype, (self.name,)


def as_dtype(type_value: Any) -> DType:
    """The `DType` for a name, an enum, a NumPy type or dtype, `float`, `bool`, `object` or an object with a dtype.

    As in TensorFlow `int` and `str` are refused: their width and encoding would be a guess.

    >>> as_dtype("half"), as_dtype(np.int64), as_dtype(float), as_dtype(101)
    (tf.float16, tf.int64, tf.float32, tf.float32_ref)
    """
    if type_value.__class__ is DType:
        found: DType = type_value
        return found
    try:
        return _BY_ANY[type_value]
    except (KeyError, TypeError):  # TypeError: arrays are not hashable, but have a dtype
        pass
    # Other byte orders and string lengths ('>f4', 'S5') are the same type to us.
    inner = _BY_ANY.get(type_value.type) if isinstance(type_value, np.dtype) else getattr(type_value, "dtype", None)
    if inner is None:
        raise TypeError(
            f"as_dtype: cannot make a DType of {type_value!r}; give one such as tf.float32, its name, or a NumPy dtype."
        )
    return as_dtype(inner)


def _make(name: str, enum: int, kind: str, numpy: Any, size: int, real: DType | None) -> DType:
    self = object.__new__(DType)
    self.name, self.as_datatype_enum, self.size, self._numpy = name, enum, size, numpy
    self.is_bool = kind == "bool"
    self.is_complex = kind == "complex"
    self.is_floating = kind == "float"
    self.is_integer = kind in ("int", "uint")
    self.is_unsigned = kind == "uint"
    self.is_quantized = kind == "quantized"
    self.is_numpy_compatible = numpy is not None
    self._is_ref_dtype = enum > _REF
    self.base_dtype = self._as_ref = self
    self.real_dtype = self if real is None else real
    _BY_ENUM[enum] = _BY_ANY[enum] = _BY_ANY[name] = self
    return self


def _define(name: str, enum: int, kind: str, numpy: Any = None, real: DType | None = None) -> DType:
    size = 0 if numpy in (None, object) else np.dtype(numpy).itemsize
    self = _make(name, enum, kind, numpy, size, real)
    ref = _make(f"{name}_ref", enum + _REF, kind, numpy, size, real)
    self._as_ref, ref.base_dtype = ref, self
    if numpy is not None:
        _BY_ANY[numpy] = _BY_ANY[np.dtype(numpy)] = self
    return self


def _quantized(name: str, enum: int, numpy: Any) -> DType:
    # A one-field record keeps a quantized array apart from a plain integer one.
    return _define(name, enum, "quantized", np.dtype([(name, numpy)]))


float32 = _define("float32", 1, "float", np.float32)
float64 = _define("float64", 2, "float", np.float64)
int32 = _define("int32", 3, "int", np.int32)
uint8 = _define("uint8", 4, "uint", np.uint8)
int16 = _define("int16", 5, "int", np.int16)
int8 = _define("int8", 6, "int", np.int8)
string = _define("string", 7, "string", object)
complex64 = _define("complex64", 8, "complex", np.complex64, float32)
int64 = _define("int64", 9, "int", np.int64)
bool = _define("bool", 10, "bool", np.bool_)
qint8 = _quantized("qint8", 11, np.int8)
quint8 = _quantized("quint8", 12, np.uint8)
qint32 = _quantized("qint32", 13, np.int32)
bfloat16 = _define("bfloat16", 14, "float", ml_dtypes.bfloat16)
qint16 = _quantized("qint16", 15, np.int16)
quint16 = _quantized("quint16", 16, np.uint16)
uint16 = _define("uint16", 17, "uint", np.uint16)
complex128 = _define("complex128", 18, "complex", np.complex128, float64)
float16 = _define("float16", 19, "float", np.float16)
resource = _define("resource", 20, "resource")
variant = _define("variant", 21, "variant")
uint32 = _define("uint32", 22, "uint", np.uint32)
uint64 = _define("uint64", 23, "uint", np.uint64)
float8_e5m2 = _define("float8_e5m2", 24, "float", ml_dtypes.float8_e5m2)
float8_e4m3fn = _define("float8_e4m3fn", 25, "float", ml_dtypes.float8_e4m3fn)
float8_e4m3fnuz = _define("float8_e4m3fnuz", 26, "float", ml_dtypes.float8_e4m3fnuz)
float8_e4m3b11fnuz = _define("float8_e4m3b11fnuz", 27, "float", ml_dtypes.float8_e4m3b11fnuz)
float8_e5m2fnuz = _define("float8_e5m2fnuz", 28, "float", ml_dtypes.float8_e5m2fnuz)
int4 = _define("int4", 29, "int", ml_dtypes.int4)
uint4 = _define("uint4", 30, "uint", ml_dtypes.uint4)

float32_ref = float32._as_ref
float64_ref = float64._as_ref
int32_ref = int32._as_ref
uint8_ref = uint8._as_ref
int16_ref = int16._as_ref
int8_ref = int8._as_ref
string_ref = string._as_ref
complex64_ref = complex64._as_ref
int64_ref = int64._as_ref
bool_ref = bool._as_ref
qint8_ref = qint8._as_ref
quint8_ref = quint8._as_ref
qint32_ref = qint32._as_ref
bfloat16_ref = bfloat16._as_ref
qint16_ref = qint16._as_ref
quint16_ref = quint16._as_ref
uint16_ref = uint16._as_ref
complex128_ref = complex128._as_ref
float16_ref = float16._as_ref
resource_ref = resource._as_ref
variant_ref = variant._as_ref
uint32_ref = uint32._as_ref
uint64_ref = uint64._as_ref
float8_e5m2_ref = float8_e5m2._as_ref
float8_e4m3fn_ref = float8_e4m3fn._as_ref
float8_e4m3fnuz_ref = float8_e4m3fnuz._as_ref
float8_e4m3b11fnuz_ref = float8_e4m3b11fnuz._as_ref
float8_e5m2fnuz_ref = float8_e5m2fnuz._as_ref
int4_ref = int4._as_ref
uint4_ref = uint4._as_ref

half, half_ref = float16, float16_ref
double, double_ref = float64, float64_ref

_NO_LIMITS = ("int4", "uint4")

_BY_ANY.update(
    {
        "float": float32,
        "float_ref": float32_ref,
        "half": float16,
        "half_ref": float16_ref,
        "double": float64,
        "double_ref": float64_ref,
        float: float32,
        builtins.bool: bool,
        np.object_: string,
        np.bytes_: string,
        np.str_: string,
        np.longlong: int64,
        np.ulonglong: uint64,
        np.intc: int32,
        np.uintc: uint32,
    }
)

# Every quantized type, and references to it.
QUANTIZED_DTYPES = frozenset(t for kind in (qint8, quint8, qint16, quint16, qint32) for t in (kind, kind._as_ref))
