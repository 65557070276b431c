"""`tf.compat`: bytes and text, and both APIs as `v1` and `v2`."""

import importlib as _importlib
from typing import Any as _Any

from penstock.face.missing import missing_name as _missing_name
from penstock.v1.compat import (
    as_bytes,
    as_str,
    as_str_any,
    as_text,
    bytes_or_text_types,
    complex_types,
    forward_compatible,
    integral_types,
    path_to_str,
    real_types,
)

_APIS = {"v1": "penstock.v1", "v2": "penstock"}


def __getattr__(name: str) -> _Any:
    # The 1.x API is imported by the first program that uses it.
    if name in _APIS:
        return _importlib.import_module(_APIS[name])
    raise _missing_name(__name__, name, [*globals(), *_APIS])
