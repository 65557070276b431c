"""Loops and branches, whose bodies are blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.jaxprs.dims import scan_counts
from penstock.jaxprs.numpy_block import Block, block_of
from penstock.jaxprs.numpy_rules import SHARED, Kernel, Site, rule


def _loop_body(site: Site, name: str, first: int, count: int) -> tuple[Block, list[int]]:
    """A body that may write into its carried values, and the positions of those that it does write into.

    A loop copies these once, at the start. Otherwise each iteration would copy, for instance, an array in which it sets
    one row.
    """
    body = block_of(site, name, site.node.params[name])
    written = site.node.blocks.get("written")
    if written is None:
        written = site.node.blocks["written"] = sorted(position - first for position in body.donate(first, count))
    return body, written


@rule("while", memory=SHARED)
def while_(site: Site) -> Kernel:
    of_condition, of_body = site.param("cond_nconsts"), site.param("body_nconsts")
    carried = len(site.node.outputs)
    holds_block = block_of(site, "cond_jaxpr", site.node.params["cond_jaxpr"])
    body_block, written = _loop_body(site, "body_jaxpr", of_body, carried)
    holds, body = holds_block.bind(site.sizes), body_block.bind(site.sizes)
    begin = of_condition + of_body

    def kernel(*operands: Any) -> list[Any]:
        condition_constants, body_constants = operands[:of_condition], operands[of_condition:begin]
        carry = list(operands[begin:])
        for position in written:
            carry[position] = np.array(carry[position])
        while holds((*condition_constants, *carry))[0]:
            carry = body((*body_constants, *carry))
        return carry

    return kernel


@rule("cond", memory=SHARED)
def cond(site: Site) -> Kernel:
    jaxprs = site.node.params["branches"]
    blocks = [block_of(site, position, jaxpr) for position, jaxpr in enumerate(jaxprs)]
    branches = [block.bind(site.sizes) for block in blocks]
    last = len(branches) - 1

    def kernel(index: Any, *operands: Any) -> list[Any]:
        return branches[min(max(int(index), 0), last)](operands)

    return kernel


@rule("platform_index")
def platform_index(site: Site) -> Kernel:
    """The branch of a platform_dependent for the CPU, on which NumPy runs."""
    choices = site.param("platforms")
    index = next((i for i, platforms in enumerate(choices) if platforms is None or "cpu" in platforms), None)
    if index is None:
        raise site.no_rule(f"none of the platforms {choices} is the CPU")
    value = np.asarray(index, site.out_dtype())
    return lambda: value


@rule("scan", memory=SHARED)
def scan(site: Site) -> Kernel:
    constants, carried = scan_counts(site.node.params)
    body_block, written = _loop_body(site, "jaxpr", constants, carried)
    length, reverse = int(site.param("length")), site.param("reverse")
    body = body_block.bind(site.sizes)
    begin = constants + carried
    outputs = site.node.outputs
    stacked = [(site.out_shape(position), outputs[position].dtype) for position in range(carried, len(outputs))]
    order = range(length - 1, -1, -1) if reverse else range(length)

    def kernel(*operands: Any) -> list[Any]:
        fixed, carry, series = operands[:constants], list(operands[constants:begin]), operands[begin:]
        for position in written:
            carry[position] = np.array(carry[position])
        collected = [np.empty(shape, dtype) for shape, dtype in stacked]
        for i in order:
            results = body((*fixed, *carry, *[x[i] for x in series]))
            carry = results[:carried]
            for into, result in zip(collected, results[carried:], strict=True):
                into[i] = result
        return [*carry, *collected]

    return kernel
