"""SaveSliceInfo: the part of a larger variable that a variable holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorboard.compat.proto.variable_pb2 import SaveSliceInfoDef


class SaveSliceInfo:
    """The position of a partition in the whole variable, in the form that a checkpoint uses.

    >>> SaveSliceInfo("emb", [10, 2], [4, 0], [3, 2]).spec
    '10 2 4,3:0,2'
    """

    def __init__(
        self,
        full_name: str | None = None,
        full_shape: Sequence[int] | None = None,
        var_offset: Sequence[int] | None = None,
        var_shape: Sequence[int] | None = None,
        save_slice_info_def: Any = None,
        import_scope: str | None = None,
    ) -> None:
        if save_slice_info_def is not None:
            info = save_slice_info_def
            full_name = f"{import_scope}/{info.full_name}" if import_scope else info.full_name
            full_shape, var_offset, var_shape = list(info.full_shape), list(info.var_offset), list(info.var_shape)
        self.full_name = full_name or ""
        self.full_shape = list(full_shape or ())
        self.var_offset = list(var_offset or ())
        self.var_shape = list(var_shape or ())

    @property
    def spec(self) -> str:
        """The slice as a checkpoint writes it: the whole shape, then `offset,size` per dimension."""
        whole = " ".join(str(d) for d in self.full_shape)
        parts = ":".join(f"{o},{d}" for o, d in zip(self.var_offset, self.var_shape, strict=True))
        return f"{whole} {parts}"

    def to_proto(self, export_scope: str | None = None) -> Any:
        """As a SaveSliceInfoDef, or None if it is not under `export_scope`."""
        if export_scope is not None and not self.full_name.startswith(export_scope):
            return None
        return SaveSliceInfoDef(
            full_name=strip_scope(self.full_name, export_scope),
            full_shape=self.full_shape,
            var_offset=self.var_offset,
            var_shape=self.var_shape,
        )


def strip_scope(name: str, scope: str | None) -> str:
    """`name` without the leading `scope/`."""
    return name.removeprefix(f"{scope}/") if scope else name
