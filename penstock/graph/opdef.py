"""One op, one declaration: the `@op` decorator, the registry it fills, and the data derived from a declaration.

    @op("MatMul", "T, T -> product: T", T=NUMBERS, shape=matmul_shape)
    def matmul(a, b, *, transpose_a: bool = False, transpose_b: bool = False):
        ...jnp...

The signature gives the types of inputs and outputs as TensorFlow's op definitions do: `T` is a type attribute,
`&T` a reference to a variable, `N*T` a list of N tensors, `list(Tin)` a list of mixed types, `float` a fixed type.
Input names are the function's positional parameters; keyword-only parameters are attrs, typed by their annotation.
The decorated name becomes an `OpDef`, which users call: it adds a node to the default graph.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.frames import leaves_engine
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.hooks import NotDense, hooks

MISSING: Any = object()

# The kind of an attr in an OpDef, by the annotation of its keyword-only parameter.
ATTR_KINDS = {
    "bool": "bool",
    "int": "int",
    "float": "float",
    "str": "string",
    "DType": "type",
    "TensorShape": "shape",
    "np.ndarray": "tensor",
    "Function": "func",
    "Call": "func",
    "list[int]": "list(int)",
    "list[float]": "list(float)",
    "list[str]": "list(string)",
    "list[bool]": "list(bool)",
    "list[DType]": "list(type)",
    "list[TensorShape]": "list(shape)",
    "list[Function]": "list(func)",
}


@dataclass(frozen=True, slots=True)
class ArgDef:
    """One input or output of an op: a fixed type, a type attr, or a list of either."""

    name: str
    type: DType | None = None
    type_attr: str = ""
    number_attr: str = ""
    type_list_attr: str = ""
    is_ref: bool = False

    @property
    def is_list(self) -> bool:
        return bool(self.number_attr or self.type_list_attr)


@dataclass(frozen=True, slots=True)
class AttrDef:
    """One attr: its kind (`int`, `list(type)`, ...), its default if it has one, and the types it may take."""

    name: str
    kind: str
    default: Any = MISSING
    allowed: tuple[DType, ...] = ()


class Types(tuple[DType, ...]):
    """The types that a type attr may take; Python values become `default` if nothing else decides."""

    default: DType | None = None

    def __new__(cls, *dtypes: DType, default: DType | None = None) -> Types:
        self = super().__new__(cls, dtypes)
        self.default = default
        return self


@dataclass(eq=False, slots=True)
class OpDef:
    """The full description of an op type; calling it adds a node to the default graph and returns its outputs."""

    name: str
    inputs: tuple[ArgDef, ...]
    outputs: tuple[ArgDef, ...]
    attrs: dict[str, AttrDef]
    kernel: Callable[..., Any]
    shape: Callable[[Any], Any] | None = None  # (Operation) -> one shape per output
    grad: Callable[..., Any] | None = None  # (Operation, *output grads) -> one grad or None per input
    no_gradient: bool = False
    host: bool = False  # runs in Python between compiled segments
    stateful: bool = False  # two equal nodes may give different values
    numpy: bool = False  # the kernel also works on NumPy arrays: it can fold constants and handle strings
    static: tuple[str, ...] = ()  # inputs with values that the compiled code is specialised on (shapes, axes)
    writes: tuple[str, ...] = ()  # variable inputs that the kernel's results replace
    overwrites: bool = False  # writes without reading the old value, so the variable may be uninitialised
    random: bool = False  # the kernel takes `key=`, the state of a generator, which moves on with every run
    reserves: Callable[[tuple[Any, ...]], Any] | None = None  # how far it moves on, by the shape of output 0
    control_flow: bool = False
    blocking: bool = False  # waits for other steps or tasks, so it runs as late as possible
    can_suspend: bool = False  # a blocking op that waits on a `Waitable`: it need not block its thread
    takes_variables: bool = False  # a host op that receives variables as objects and reads them itself
    elementwise: bool = False  # an update that computes each element of its variables from those in the same place
    default_name: str = ""
    static_of: Callable[[dict[str, Any]], frozenset[int]] | None = None  # like `static`, if it depends on the attrs
    wants: frozenset[str] = field(default_factory=frozenset)  # keyword-only parameters of the kernel
    row_rule: Callable[..., Any] | None = None  # updates distinct rows: it gets only these rows, and no indices

    @leaves_engine
    def __call__(self, *args: Any, name: str | None = None, **kwargs: Any) -> Any:
        try:
            return hooks.build(self, args, kwargs, name)
        except NotDense:
            return hooks.ragged(self, args, kwargs, name)

    @property
    def parameters(self) -> list[tuple[str, Any]]:
        """The arguments of a call by position, with their defaults or MISSING.

        These are the inputs, the attrs that no input decides, required ones first, and `name`.
        """
        decided = {a for arg in self.inputs for a in (arg.type_attr, arg.type_list_attr, arg.number_attr)}
        attrs = sorted(
            (a for a in self.attrs.values() if a.name not in decided), key=lambda a: a.default is not MISSING
        )
        return [*((arg.name, MISSING) for arg in self.inputs), *((a.name, a.default) for a in attrs), ("name", None)]

    @property
    def __signature__(self) -> inspect.Signature:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        empty = inspect.Parameter.empty
        return inspect.Signature(
            [inspect.Parameter(n, kind, default=empty if d is MISSING else d) for n, d in self.parameters]
        )

    def input_index(self, name: str) -> int:
        """Position of the input called `name` (only for ops without list inputs before it)."""
        return next(i for i, arg in enumerate(self.inputs) if arg.name == name)

    def __repr__(self) -> str:
        return f"<OpDef {self.name}>"


def later(operation: Any, *_: Any) -> Any:
    """Stands for the gradient of an op that a module above the op's own declares with `gradient_of`."""
    raise AssertionError(f"The gradient of {operation.type} is missing: nobody has imported the module that has it.")


def gradient_of(*op_defs: OpDef) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declares the gradient of op types that say `grad=later`, since it uses ops of modules above theirs.

    >>> @gradient_of(arithmetic.sub)
    ... def sub(op, grad): return [grad, unary.negative(grad)]
    """

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        for op_def in op_defs:
            assert op_def.grad is later, f"{op_def.name} has a gradient"
            op_def.grad = function
        return function

    return declare


_REGISTRY: dict[str, OpDef] = {}
_libraries: list[Callable[[], None]] = []  # those not loaded yet
_loading = threading.RLock()


def declare_library(load: Callable[[], None]) -> None:
    """Registers a function that loads all op types of a library, called when an unknown op type is looked up."""
    _libraries.append(load)


def load_libraries() -> None:
    """Loads all libraries, so that every op type is registered."""
    with _loading:  # another thread may be loading them: what they declare is there only afterwards
        while _libraries:
            _libraries.pop()()


def registered(name: str) -> OpDef | None:
    """The op type called `name`, or None.

    >>> registered("MatMul").inputs[0].name
    'a'
    """
    if name not in _REGISTRY:
        load_libraries()
    return _REGISTRY.get(name)


def op_of(name: str) -> OpDef:
    """The op type called `name`, which some module declares."""
    found = registered(name)
    assert found is not None, f"{name} is not declared"
    return found


def all_ops() -> Iterable[OpDef]:
    """Every op type."""
    load_libraries()
    return _REGISTRY.values()


def grouped(op_def: OpDef, attrs: dict[str, Any], values: Sequence[Any]) -> list[Any]:
    """Groups a node's flat inputs into the arguments of its kernel: one value, or a list for a list input.

    >>> grouped(registered("ConcatV2"), {"N": 2}, [x, y, axis])
    [[x, y], axis]
    """
    arguments: list[Any] = []
    start = 0
    for arg, count in zip(op_def.inputs, _counts(op_def, attrs, len(values)), strict=True):
        part = values[start : start + count]
        arguments.append(list(part) if arg.is_list else part[0])
        start += count
    return arguments


def static_positions(op_def: OpDef, attrs: dict[str, Any], n_inputs: int) -> frozenset[int]:
    """The positions of the inputs that the compiled code is specialised on.

    >>> static_positions(registered("ConcatV2"), {"N": 2}, 3)
    frozenset({2})
    """
    if op_def.static_of is not None:
        return op_def.static_of(attrs)
    if not op_def.static:
        return _NO_POSITIONS
    found: list[int] = []
    start = 0
    for arg, count in zip(op_def.inputs, _counts(op_def, attrs, n_inputs), strict=True):
        if arg.name in op_def.static:
            found += range(start, start + count)
        start += count
    return frozenset(found)


_NO_POSITIONS: frozenset[int] = frozenset()


def _counts(op_def: OpDef, attrs: dict[str, Any], n_inputs: int) -> list[int]:
    """The number of tensors that each declared input takes."""
    if len(op_def.inputs) == n_inputs and not any(arg.is_list for arg in op_def.inputs):
        return [1] * n_inputs
    return [
        int(attrs[arg.number_attr]) if arg.number_attr else len(attrs[arg.type_list_attr]) if arg.type_list_attr else 1
        for arg in op_def.inputs
    ]


def parse_arg(text: str, name: str) -> ArgDef:
    """Parses `&T`, `N*T`, `list(Tin)`, `int32` or `T` into an ArgDef; `out: T` names it."""
    if ":" in text:
        name, text = (part.strip() for part in text.split(":"))
    is_ref = text.startswith("&")
    text = text.lstrip("&")
    if text.startswith("list("):
        return ArgDef(name, type_list_attr=text[5:-1], is_ref=is_ref)
    number, _, base = text.rpartition("*")
    # Attrs are mostly called T...; the others are dtype, out_type, output_dtype, index_type, out_idx.
    if base[:1].islower() and not base.endswith(("type", "out_idx")):
        return ArgDef(name, type=as_dtype(base), number_attr=number, is_ref=is_ref)
    return ArgDef(name, type_attr=base, number_attr=number, is_ref=is_ref)


def op(
    name: str,
    signature: str,
    *,
    shape: Callable[[Any], Any] | None = None,
    grad: Callable[..., Any] | None = None,
    no_gradient: bool = False,
    host: bool = False,
    stateful: bool = False,
    numpy: bool = False,
    static: str = "",
    writes: str = "",
    overwrites: bool = False,
    random: bool = False,
    reserves: Callable[[tuple[Any, ...]], Any] | None = None,
    control_flow: bool = False,
    blocking: bool = False,
    can_suspend: bool = False,
    takes_variables: bool = False,
    elementwise: bool = False,
    default_name: str = "",
    static_of: Callable[[dict[str, Any]], frozenset[int]] | None = None,
    **types: Sequence[DType],
) -> Callable[[Callable[..., Any]], OpDef]:
    """Declares an op type. See the module's docstring; the options are the fields of `OpDef`."""

    def declare(kernel: Callable[..., Any]) -> OpDef:
        params = inspect.signature(kernel).parameters.values()
        positional = [p.name for p in params if p.kind in (p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
        left, _, right = signature.partition("->")
        ins = [t.strip() for t in left.split(",") if t.strip()]
        outs = [t.strip() for t in right.split(",") if t.strip()]
        assert len(ins) == len(positional), f"{name}: {ins} against parameters {positional}"
        inputs = tuple(parse_arg(text, arg) for text, arg in zip(ins, positional, strict=True))
        outputs = tuple(parse_arg(t, "output" if len(outs) == 1 else f"output_{i}") for i, t in enumerate(outs))
        attrs: dict[str, AttrDef] = {}
        wants = set()
        for p in params:
            if p.kind is p.KEYWORD_ONLY:
                wants.add(p.name)
                # `key` is the key of random numbers unless it is annotated: then it is an attr, as for hashes.
                given = p.name in ("key", "ctx", "resource", "functions") and str(p.annotation) not in ATTR_KINDS
                if not given:
                    default = MISSING if p.default is p.empty else p.default
                    allowed = tuple(types.get(p.name, ()))
                    attrs[p.name] = AttrDef(p.name, ATTR_KINDS[str(p.annotation)], default, allowed)
        for arg in (*inputs, *outputs):
            for attr in filter(None, (arg.type_attr, arg.type_list_attr, arg.number_attr)):
                if attr not in attrs:
                    allowed_types = types.get(attr, ())
                    kind = {arg.number_attr: "int", arg.type_list_attr: "list(type)"}.get(attr, "type")
                    default = getattr(allowed_types, "default", None) or MISSING
                    attrs[attr] = AttrDef(attr, kind, default, tuple(allowed_types))
        opdef = OpDef(
            name,
            inputs,
            outputs,
            attrs,
            kernel,
            shape=shape,
            grad=grad,
            no_gradient=no_gradient,
            host=host,
            stateful=stateful or bool(writes) or random,
            numpy=numpy,
            static=tuple(static.split()),
            writes=tuple(writes.split()),
            overwrites=overwrites,
            random=random,
            reserves=reserves,
            control_flow=control_flow,
            blocking=blocking,
            can_suspend=can_suspend,
            takes_variables=takes_variables,
            elementwise=elementwise,
            default_name=default_name or name,
            static_of=static_of,
            wants=frozenset(wants),
        )
        assert name not in _REGISTRY, f"{name} is declared twice"
        _REGISTRY[name] = opdef
        return opdef

    return declare
