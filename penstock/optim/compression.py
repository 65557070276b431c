"""CompressingOptimizer: the base of optimizers that make gradients small on the worker, before they travel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.graph.convert import convert_to_tensor_or_indexed_slices
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Tensor
from penstock.graph.scopes import colocate_with, init_scope, name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array.creation import zeros
from penstock.ops.control.grouping import no_op
from penstock.optim.optimizer import Optimizer
from penstock.optim.wrapper import WrapperOptimizer
from penstock.variables.variable import Variable


class CompressingOptimizer(WrapperOptimizer):
    """Sends gradients in a smaller form; `opt` applies what they are restored to, where the variables are.

    A subclass has `_restored`, which compresses a dense gradient where the program puts operations, on the worker, and
    restores it inside `colocate_with(var)`, on the parameter server. So only the small form is between the two. State
    of the worker is in local variables: one that is started again begins with zeros, and training goes on.

    It wraps other optimizers, not the other way round: `SyncReplicasOptimizer` as `opt` adds up restored gradients on
    the parameter servers.
    """

    def __init__(self, opt: Optimizer, name: str) -> None:
        super().__init__(opt, False, name)
        if isinstance(opt, CompressingOptimizer):
            raise TypeError(f"opt compresses gradients already, received a {type(opt).__name__}: use one of the two.")

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: TensorLike = None, name: str | None = None
    ) -> Any:
        """The train op of `opt` for the gradients as they arrive."""
        pairs = [(None if g is None else convert_to_tensor_or_indexed_slices(g), var) for g, var in grads_and_vars]
        with name_scope(name, self._name):
            arrived = [
                (None if grad is None else self._arrived(grad, var), var)
                for grad, var in self._prepared(pairs, global_step)
            ]
        return self._opt.apply_gradients(arrived, global_step=global_step, name=name)

    def _arrived(self, grad: Any, var: Any) -> Any:
        with name_scope("send_" + var.op.name):
            return self._arrived_rows(grad, var) if isinstance(grad, IndexedSlices) else self._restored(grad, var)

    def _prepared(self, pairs: list[tuple[Any, Any]], global_step: Any) -> list[tuple[Any, Any]]:
        """The gradients to compress. A subclass may change them together, and make what all of them use."""
        return pairs

    def _restored(self, grad: Tensor, var: Any) -> Any:
        """A dense gradient as it arrives beside its variable."""
        raise NotImplementedError

    def _arrived_rows(self, grad: IndexedSlices, var: Any) -> Any:
        """A sparse gradient as it arrives. Only rows that were used travel, so it is left as it is."""
        return grad

    def _local(self, var: Any, kind: str, shape: list[int]) -> Any:
        """Zeros on the worker, for a variable."""
        # A device function may put a variable on a parameter server. Colocated with an operation it stays here.
        with init_scope(), colocate_with(no_op()), name_scope(None):
            return Variable(
                zeros(shape, var.dtype.base_dtype),
                name=f"{var.op.name}/{self._name}/{kind}",
                trainable=False,
                collections=[GraphKeys.LOCAL_VARIABLES],
                use_resource=True,
            )

    def _size(self, var: Any) -> int:
        """The number of elements of a variable."""
        size: int | None = var.get_shape().num_elements()
        if size is None:
            raise ValueError(
                f"{self._name} keeps what it has not sent of '{var.name}', so the variable needs a shape that is "
                f"known; it has {var.get_shape()}."
            )
        return size
