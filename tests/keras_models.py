"""What the tests of Keras share: Keras itself, with penstock's hooks, and small models."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

_found = importlib.util.find_spec("keras")
if _found is None or _found.origin is None:  # tests/keras itself is no Keras
    pytest.skip("needs Keras: pip install penstock[keras]", allow_module_level=True)

import penstock as tf  # noqa: E402
import penstock.keras  # noqa: E402  # chooses the backend of Keras

import keras  # noqa: E402  isort: skip

from penstock.distribute.mirrored import OneDeviceStrategy  # noqa: E402


def one_device() -> Any:
    """A strategy with one device, in whose scope Keras variables are penstock's."""
    return OneDeviceStrategy("/cpu:0")


def devices_of(variables: Any) -> set[str]:
    """The devices of Keras variables."""
    return {v.device for v in variables}


__all__ = ["devices_of", "keras", "one_device", "penstock", "tf"]
