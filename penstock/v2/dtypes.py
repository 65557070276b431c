"""Types of tensors."""

from penstock.face.missing import guard as _guard
from penstock.graph.dtype import (
    QUANTIZED_DTYPES,
    DType,
    as_dtype,
    bfloat16,
    bool,
    complex64,
    complex128,
    double,
    float16,
    float32,
    float64,
    half,
    int8,
    int16,
    int32,
    int64,
    qint8,
    qint16,
    qint32,
    quint8,
    quint16,
    resource,
    string,
    uint8,
    uint16,
    uint32,
    uint64,
    variant,
)
from penstock.ops.math.casting import cast, complex, saturate_cast

__getattr__ = _guard(__name__)
