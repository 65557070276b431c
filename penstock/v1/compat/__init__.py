"""`tf.compat`: bytes and text, and this API itself as `v1`."""

import importlib as _importlib
import numbers as _numbers
from typing import Any as _Any

import numpy as _np

from penstock.face.missing import missing_name as _missing_name
from penstock.text import as_bytes, as_str_any, as_text, path_to_str

as_str = as_text

bytes_or_text_types = (bytes, str)
complex_types = (_numbers.Complex, _np.number)
integral_types = (_numbers.Integral, _np.integer)
real_types = (_numbers.Real, _np.integer, _np.floating)


def forward_compatible(year: int, month: int, day: int) -> bool:
    """True: penstock writes one format only, so it is compatible with any date."""
    return True


def __getattr__(name: str) -> _Any:
    # Imported late: penstock.v1 imports this module.
    if name == "v1":
        return _importlib.import_module("penstock.v1")
    raise _missing_name(__name__, name, [*globals(), "v1"])
