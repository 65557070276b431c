"""Asset: a file that is saved with a model, such as a vocabulary."""

from __future__ import annotations

import os
from typing import Any

from penstock.graph.convert import convert_to_tensor, register_tensor_conversion_function
from penstock.graph.operation import Tensor
from penstock.graph.scopes import init_scope
from penstock.trackable.base import Trackable


class Asset(Trackable):
    """A file that is copied into a SavedModel. Functions use its path as a tensor; after loading that of the copy.

    >>> module.vocabulary = tf.saved_model.Asset("words.txt")
    """

    def __init__(self, path: Any) -> None:
        self._path: str = os.fspath(path)
        with init_scope():
            self._tensor: Tensor = convert_to_tensor(self._path)

    @property
    def asset_path(self) -> Tensor:
        """The path, as a tensor."""
        return self._tensor

    def __fspath__(self) -> str:
        return self._path

    def _as_tensor(self) -> Tensor:
        return self._tensor

    def __repr__(self) -> str:
        return f"<Asset {self._path!r}>"


def _converted(asset: Asset, dtype: Any = None, name: str | None = None, as_ref: bool = False) -> Any:
    return NotImplemented if dtype is not None and dtype.name != "string" else asset.asset_path


register_tensor_conversion_function(Asset, _converted)
