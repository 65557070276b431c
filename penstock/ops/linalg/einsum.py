"""einsum: sums of products, given by an equation of axis labels."""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
import opt_einsum  # type: ignore[import-untyped]

from penstock.graph.convert import convert_n_to_tensor
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.kernel.shapes import broadcast_pair
from penstock.kernel.types import Array

_SIDE = r"[a-zA-Z]*(?:\.\.\.)?[a-zA-Z]*"
_FORM = re.compile(rf"{_SIDE}(?:,{_SIDE})*(?:->{_SIDE})?")


def _shape(op: Operation) -> list[TensorShape]:
    """Shape rule: the sizes of the output's labels; the axes of `...` broadcast."""
    left, _, output = op.attrs["equation"].partition("->")
    terms = left.split(",")
    if len(terms) != len(op.input_list):
        raise ValueError(f"Expected {len(terms)} inputs but got: {len(op.input_list)}")
    sizes: dict[str, int | None] = {}
    rest = TensorShape.of(())
    for term, tensor in zip(terms, op.input_list, strict=True):
        before, dots, after = term.partition("...")
        dims: list[int | None]
        if tensor.shape.rank is None:
            dims = [None] * len(before + after)
            if dots:
                rest = TensorShape.of(None)
        else:
            dims = tensor.shape.as_list()
            _check_rank(len(dims), len(before + after), bool(dots))
            end = len(dims) - len(after)
            if dots and rest.rank is not None:
                rest = broadcast_pair(rest, TensorShape.of(tuple(dims[len(before) : end])))
            dims = dims[: len(before)] + dims[end:]
        for label, size in zip(before + after, dims, strict=True):
            known = sizes.get(label)
            if known is not None and size is not None and known != size:
                raise ValueError(f"Dimensions must be equal, but are {known} and {size}")
            sizes[label] = size if known is None else known
    before, dots, after = output.partition("...")
    if dots and rest.rank is None:
        return [TensorShape.of(None)]
    middle = rest.as_list() if dots else []
    return [TensorShape.of((*(sizes[c] for c in before), *middle, *(sizes[c] for c in after)))]


def _check_rank(rank: int, labels: int, dots: bool) -> None:
    if (rank < labels) if dots else (rank != labels):
        least = "at least " if dots else ""
        raise ValueError(f"Shape must be {least}rank {labels} but is rank {rank}")


def _check_diagonals(term: str, dims: tuple[int, ...]) -> None:
    """Checks that a label that occurs twice in one input has one size; jax does not check symbolic sizes."""
    before, dots, after = term.partition("...")
    sizes = [*zip(before, dims, strict=False), *(zip(after[::-1], dims[::-1], strict=False) if dots else ())]
    known: dict[str, int] = {}
    for label, size in sizes:
        if known.setdefault(label, size) != size:
            raise ValueError(f"Dimensions must be equal, but are {known[label]} and {size} for label {label!r}")


@op("Einsum", "N*T -> output: T", shape=_shape)
def einsum_op(inputs: list[Array], *, equation: str) -> Array:
    terms = equation.partition("->")[0].split(",")
    for term, x in zip(terms, inputs, strict=True):
        _check_rank(x.ndim, len(term.replace("...", "")), "..." in term)
        _check_diagonals(term, x.shape)
    return jnp.einsum(equation, *inputs)


def einsum(equation: str, *inputs: Any, **kwargs: Any) -> Tensor:
    """Products of the inputs' elements, summed over the labels that the output lacks.

    More than two inputs are multiplied two at a time, in an order that is cheap.

    >>> tf.einsum("bij,bjk->bik", x, y)
    """
    name, optimize = kwargs.pop("name", None), kwargs.pop("optimize", "greedy")
    if kwargs:
        raise TypeError(f"Invalid keyword arguments for einsum: {', '.join(kwargs)}. Valid arguments: name, optimize.")
    with name_scope(name, "einsum", list(inputs)):
        tensors = convert_n_to_tensor(inputs)
        resolved = _resolved(equation, len(tensors))
        result: Tensor
        if len(tensors) <= 2:
            result = einsum_op(tensors, equation=resolved)
            return result
        for positions, pair in _steps(resolved, tensors, optimize):
            chosen = [tensors.pop(i) for i in positions]
            tensors.append(einsum_op(chosen, equation=pair))
        return tensors[0]


def _resolved(equation: str, count: int) -> str:
    """The equation without blanks and with its output; by default that is the labels that occur once, in order."""
    if not isinstance(equation, str):
        raise ValueError(f"einsum: the equation must be a string, received {equation!r}.")
    text = equation.replace(" ", "")
    if not _FORM.fullmatch(text):
        raise ValueError(f"Indices have incorrect format. Received: {equation!r}.")
    left, arrow, output = text.partition("->")
    terms = left.split(",")
    if len(terms) != count:
        raise ValueError(f'Got {count} inputs for equation "{equation}", expecting {len(terms)}')
    labels = left.replace(",", "").replace("...", "")
    if not arrow:
        once = "".join(sorted(c for c in set(labels) if labels.count(c) == 1))
        output = ("..." if "..." in left else "") + once
    plain = output.replace("...", "")
    for label in plain:
        if label not in labels:
            raise ValueError(f"Output subscripts contain the label {label} not present in the input subscripts.")
    if len(set(plain)) != len(plain):
        raise ValueError(f"Output subscripts contain a label appearing more than once: {equation}")
    return f"{left}->{output}"


def _steps(equation: str, tensors: list[Tensor], optimize: Any) -> list[tuple[tuple[int, ...], str]]:
    """For each step the inputs to multiply, as positions in the remaining list, and the equation."""
    # For the choice of the order, `...` counts as one more label.
    letter = next((c for c in "zyxwvutsrqponmlkjihgfedcba" if c not in equation), "Z")
    terms = equation.partition("->")[0].split(",")
    sizes = []
    for term, tensor in zip(terms, tensors, strict=True):
        before, dots, after = term.partition("...")
        dims: list[int | None]
        dims = [None] * len(before + after) if tensor.shape.rank is None else tensor.shape.as_list()
        if dots and tensor.shape.rank is not None:
            end = len(dims) - len(after)
            dims = [*dims[: len(before)], 1, *dims[end:]]
        elif dots:
            dims.insert(len(before), 1)
        if len(dims) != len(before + after) + bool(dots):
            raise ValueError(f"einsum: '{term}' does not fit the shape {tensor.shape}.")
        sizes.append(dims)
    known: dict[str, int] = {}
    plain = equation.replace("...", letter)
    for term, dims in zip(plain.partition("->")[0].split(","), sizes, strict=True):
        for label, size in zip(term, dims, strict=True):
            if size is not None and known.setdefault(label, size) != size:
                raise ValueError(f"Dimensions must be equal, but are {known[label]} and {size}")
    shapes = [tuple(known.get(c, 1) for c in term) for term in plain.partition("->")[0].split(",")]
    _, path = opt_einsum.contract_path(plain, *shapes, shapes=True, optimize=optimize, einsum_call=True)
    return [(tuple(step[0]), step[2].replace(letter, "...")) for step in path]
