"""decode_csv: records of comma-separated values as tensors, one per column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.dtype import DType
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.ops.string.forms import invalid, listed, parse_number, shown, texts

_NO_COLUMNS: list[int] = []
_CELLS = Types(dt.float32, dt.float64, dt.int32, dt.int64, dt.string)


def _checked_shapes(op: Operation) -> list[TensorShape]:
    for default in op.input_list[1:]:
        rank = default.shape.rank
        if rank is not None and rank > 1:
            raise ValueError(f"Shape must be at most rank 1 but is rank {rank}")
        if rank == 1 and (default.shape.as_list()[0] or 0) > 1:
            raise ValueError("Shape of a default must be a length-0 or length-1 vector, or a scalar.")
    return shapes.unchanged(op)


@op(
    "DecodeCSV",
    "string, list(OUT_TYPE) -> output: list(OUT_TYPE)",
    host=True,
    no_gradient=True,
    shape=_checked_shapes,
    OUT_TYPE=_CELLS,
)
def decode_csv_op(
    records: Any,
    record_defaults: Any,
    *,
    OUT_TYPE: list[DType],
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    select_cols: list[int] = _NO_COLUMNS,
) -> Any:
    delimiter = field_delim.encode("utf-8", "surrogateescape")
    if len(delimiter) != 1:
        raise invalid(f"field_delim should be only 1 char, received {field_delim!r}.")
    if list(select_cols) != sorted(set(select_cols)) or any(c < 0 for c in select_cols):
        raise invalid(f"select_cols should be strictly increasing and not negative, received {list(select_cols)}.")
    defaults = [np.asarray(default).reshape(-1).tolist() for default in record_defaults]
    missing = (b"", na_value.encode("utf-8", "surrogateescape"))
    columns: list[list[Any]] = [[] for _ in OUT_TYPE]
    wanted = select_cols[-1] + 1 if select_cols else None
    for number, record in enumerate(listed(records)):
        fields = _fields(record, delimiter, use_quote_delim, wanted)
        if select_cols:
            fields = [fields[c] for c in select_cols if c < len(fields)]
        if len(fields) != len(columns):
            raise invalid(f"Expect {len(columns)} fields but have {len(fields)} in record {number}")
        for i, field in enumerate(fields):
            columns[i].append(_cell(field, OUT_TYPE[i], defaults[i], missing, i, number))
    shape = np.shape(records)
    return [_column(values, dtype, shape) for values, dtype in zip(columns, OUT_TYPE, strict=True)]


def _column(values: list[Any], dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    if dtype is dt.string:
        return texts(values, shape)
    with np.errstate(over="ignore"):
        return (
            np.array(values, np.float64 if dtype.is_floating else dtype.as_numpy_dtype)
            .astype(dtype.as_numpy_dtype)
            .reshape(shape)
        )


def _cell(field: bytes, dtype: DType, default: list[Any], missing: Sequence[bytes], place: int, record: int) -> Any:
    if field in missing:
        if len(default) != 1:
            raise invalid(f"Field {place} is required but missing in record {record}!")
        return default[0]
    if dtype is dt.string:
        return field
    value = parse_number(field, dtype)
    if value is None:
        raise invalid(f"Field {place} in record {record} is not a valid {dtype.name}: {shown(field)}")
    return value


def _fields(record: bytes, delimiter: bytes, quotes: bool, wanted: int | None) -> list[bytes]:
    """The fields of a record; stops after the first `wanted` ones."""
    if not record:
        return []
    if b"\n" not in record and b"\r" not in record and not (quotes and b'"' in record):
        return record.split(delimiter)
    fields: list[bytes] = []
    at, size, mark = 0, len(record), delimiter[0]
    while at < size and len(fields) != wanted:
        if record[at] in b"\r\n":
            at += 1
        elif quotes and record[at] == 34:
            field, at = _quoted(record, at + 1, mark)
            fields.append(field)
        else:
            end = record.find(delimiter, at)
            end = size if end < 0 else end
            field = record[at:end]
            if b"\n" in field or b"\r" in field or (quotes and b'"' in field):
                raise invalid("Unquoted fields cannot have quotes/CRLFs inside")
            fields.append(field)
            at = end + 1
    if record.endswith(delimiter):
        fields.append(b"")
    return fields


def _quoted(record: bytes, at: int, mark: int) -> tuple[bytes, int]:
    """The field that was opened by a quote before `at`, and where the next one starts."""
    field = bytearray()
    last = len(record) - 1
    while at < last and not (record[at] == 34 and record[at + 1] == mark):
        if record[at] == 34:
            if record[at + 1] != 34:
                raise invalid("Quote inside a string has to be escaped by another quote")
            at += 1
        field.append(record[at])
        at += 1
    if at > last or record[at] != 34:
        raise invalid("Quoted field has to end with quote followed by delim or end")
    return bytes(field), at + 2


def decode_csv(
    records: TensorLike,
    record_defaults: Any,
    field_delim: str = ",",
    use_quote_delim: bool = True,
    name: str | None = None,
    na_value: str = "",
    select_cols: Any = None,
) -> list[Tensor]:
    """Records as one tensor per column, of the type and with the default that `record_defaults` gives.

    >>> tf.decode_csv(["1,2.5,a", "2,,b"], [[0], [0.0], [""]])
    """
    if select_cols is not None:
        if list(select_cols) != sorted(set(select_cols)):
            raise ValueError(f"select_cols is not strictly increasing, received {select_cols!r}.")
        if any(c < 0 for c in select_cols):
            raise ValueError(f"select_cols contains negative values, received {select_cols!r}.")
        if len(select_cols) != len(record_defaults):
            raise ValueError(
                f"Length of select_cols and record_defaults do not match: {len(select_cols)} and "
                f"{len(record_defaults)}."
            )
    columns: list[Tensor] = decode_csv_op(
        records,
        list(record_defaults),
        field_delim=field_delim,
        use_quote_delim=use_quote_delim,
        na_value=na_value,
        select_cols=select_cols or [],
        name=name,
    )
    return columns
