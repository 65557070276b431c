"""The functions in a GraphDef's library, which attrs of its nodes name."""

from __future__ import annotations

from collections.abc import Iterable

from tensorboard.compat.proto.attr_value_pb2 import NameAttrList
from tensorboard.compat.proto.function_pb2 import FunctionDef

from penstock.graph.attrs import declared_attrs
from penstock.graph.function import Call, Function
from penstock.graph.graph import Graph
from penstock.graph.opdef import registered

MAX_DEPTH = 32  # levels of functions within functions, and of calls within calls
MAX_WRITTEN_OUT = 200_000  # nodes of all calls together, since calls of calls multiply


class Functions:
    """The bodies in a GraphDef's library; each becomes a Function when it is first needed."""

    def __init__(self, protos: Iterable[FunctionDef], outer: Graph) -> None:
        self.outer = outer
        self.protos: dict[str, FunctionDef] = {}
        self._made: dict[str, Function | None] = {}
        self._depth = 0  # how many functions are being built, each needed by the one before
        self.calls: list[str] = []  # the functions that are being inlined
        self.written_out = 0  # number of nodes
        for proto in protos:
            if proto.signature.name in self.protos:
                raise ValueError(f"Function '{proto.signature.name[:100]}' is in the library twice.")
            self.protos[proto.signature.name] = proto

    def value(self, call: NameAttrList, depth: int) -> Function | Call:
        """The value of a `func` attr: a body of the library, or an op type with its attrs."""
        if depth > MAX_DEPTH:
            raise ValueError(f"Functions are nested more than {MAX_DEPTH} deep.")
        if call.name in self.protos:
            return self.function(call.name)
        op_def = registered(call.name)
        if op_def is None:
            raise ValueError(f"Function '{call.name[:100]}' is neither in the library nor an op type.")
        return Call(call.name, declared_attrs(call.name, op_def, call.attr, self, depth))

    def function(self, name: str) -> Function:
        """The body called `name`."""
        if name in self._made:
            found = self._made[name]
            if found is None:
                raise ValueError(f"Function '{name}' calls itself.")
            return found
        if self._depth >= MAX_DEPTH:
            raise ValueError(f"Functions are nested more than {MAX_DEPTH} deep.")
        self._made[name] = None  # being built
        self._depth += 1
        function = self._made[name] = self.make(name, self.protos[name])
        self._depth -= 1
        return function

    def make(self, name: str, proto: FunctionDef) -> Function:
        """Builds the body called `name`."""
        raise NotImplementedError
