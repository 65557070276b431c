"""Runtime: the master that runs eager operations and functions, each as a step."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import penstock.data  # noqa: F401  declares the op types of datasets
from penstock.eager.repeated import RepeatedOps
from penstock.eager.seeds import STREAM, Streams, stream_name
from penstock.eager.tensor import EagerTensor, Handle
from penstock.errors import AbortedError, OpError, UnavailableError
from penstock.graph.build import output_types
from penstock.graph.device import task_name
from penstock.graph.dtype import DType, uint64
from penstock.graph.function import Function
from penstock.graph.graph import Graph
from penstock.graph.opdef import ArgDef, OpDef, op_of
from penstock.graph.operation import Operation, Tensor
from penstock.master.master import Master
from penstock.master.signature import Signature
from penstock.segments.op_programs import hashable
from penstock.segments.randomness import blocks_reserved
from penstock.segments.stored_variable import placed
from penstock.worker.devices import Device, local_devices
from penstock.worker.owner import callable_body
from penstock.worker.step import Step
from penstock.worker.worker import Worker

LOCAL = "/job:localhost/replica:0/task:0"
_MANY = 4096  # forms of single operations that are kept


class Runtime:
    """Runs single operations and functions on the devices of this process, and of a cluster once connected."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._master: Master | None = None
        self._forms: dict[Any, Signature] = {}
        self._released: list[Handle] = []  # resources to free
        self._of_handle: dict[Any, list[Any]] = {}  # the keys of the forms that use a resource
        self.device_count: dict[str, int] = {}  # how many devices of a type to use, where the program says so
        self.soft_placement = True
        self._context: tuple[Master | None, Any] = (None, None)
        self._local = LOCAL  # the name of this task
        self._names = {LOCAL}  # all names that this task has had
        self._ours = self._names  # those of them that mean this task
        self._default_device = ""
        self.recovered: Callable[[OpError], bool] | None = None  # waits until a lost task is back, with what it held
        self.repeated = RepeatedOps()
        self._streams = Streams()

    @property
    def master(self) -> Master:
        """The master; made when it is first needed."""
        if self._master is None:
            with self._lock:
                if self._master is None:
                    worker = Worker(local_devices(device_count=self.device_count))
                    worker.keeps_results = True
                    self._master = Master([worker], soft_placement=self.soft_placement)
        return self._master

    @property
    def started(self) -> bool:
        """Tells if the master is made, so that its devices are fixed."""
        return self._master is not None

    @property
    def cluster_device_names(self) -> list[str]:
        """The devices of all tasks, those of this one first."""
        tasks = self.master.tasks
        tasks.all()  # connects to those that were not used yet
        return tasks.device_names

    @property
    def device_names(self) -> list[str]:
        """The devices of this task, the default one first."""
        names = self.master.tasks.default.device_names
        gpus = [name for name in names if "GPU" in name]
        return gpus[:1] + [name for name in names if name not in gpus[:1]]

    @property
    def default_device(self) -> str:
        """The device on which operations run, unless the program says otherwise."""
        if not self._default_device:
            self._default_device = self.device_names[0]
        return self._default_device

    def move(self, master: Master | None) -> None:
        """Runs everything by another master from now on; None: by one of this process. Local resources move along."""
        with self._lock:
            before = self._master
            self._master, self._default_device = master, ""
            self._forms.clear()
            self.repeated.clear()
            if before is not None:
                before.send_unused()
                for old, new in zip(_devices(before), _devices(self.master), strict=False):
                    new.resources = old.resources
                before.close()
            self._local = self.master.tasks.default.name
            self._names.add(self._local)
            numbers = self.master.tasks.numbers()
            others = {task_name(job, number) for job in numbers for number in numbers[job]} - {self._local}
            self._ours = self._names - others  # another process has such a name now

    def device_of(self, handle: Handle) -> str:
        """The device of a resource; those of this process go by the task that it now is."""
        here, _, device = handle.device.partition("/device:")
        return handle.device if here not in self._ours else f"{self._local}/device:{device}"

    def holds(self, handle: Handle) -> bool:
        """Tells if a resource is in this process."""
        return handle.device.partition("/device:")[0] in self._ours

    def run_op(
        self, op_def: OpDef, inputs: Sequence[EagerTensor], attrs: dict[str, Any], types: Sequence[DType], device: str
    ) -> list[Any]:
        """Runs one operation as a step of its own."""
        return self.recovering(self._run_op, op_def, inputs, attrs, types, device)

    def recovering(self, run: Callable[..., list[Any]], *args: Any) -> list[Any]:
        """Calls `run(*args)`, once more if it needs a task that was lost, and that has been recovered meanwhile."""
        try:
            return run(*args)
        except (AbortedError, UnavailableError) as error:
            if self.recovered is None or not self.recovered(error):
                raise
        return run(*args)

    def _run_op(
        self, op_def: OpDef, inputs: Sequence[EagerTensor], attrs: dict[str, Any], types: Sequence[DType], device: str
    ) -> list[Any]:
        if op_def.random and (attrs.get("seed") or attrs.get("seed2")) and device in self.device_names:
            return self._run_seeded(op_def, inputs, attrs, types, device)
        key = _key(op_def, inputs, attrs, device)
        form = self._forms.get(key)
        if form is None:
            form = self._prepared(op_def, inputs, attrs, types, device)
            with self._lock:
                if len(self._forms) > _MANY:
                    self._forms.clear()
                self._forms[key] = form
            for tensor in inputs:
                if isinstance(tensor._value, Handle):
                    self._of_handle.setdefault(tensor._value.key, []).append(key)
        return self.run(form, [t._value for t in inputs if not isinstance(t._value, Handle)])

    def repeatable(
        self, op_def: OpDef, inputs: Sequence[Any], attrs: dict[str, Any], device: str
    ) -> Callable[[Sequence[Any], Step], list[Any]] | None:
        """The function that runs an operation again which `run_op` has run, if the master is not needed for it.

        It is not if all happens in this process, and does not wait for others.
        """
        form = None if op_def.blocking else self._forms.get(_key(op_def, inputs, attrs, device))
        return None if form is None else form.run_whole

    def values(self, tensors: Sequence[Any], from_bytes: int) -> list[Any]:
        """The values of tensors for a step; an array may stand for a tensor.

        The second time that a tensor is used, its array of NumPy, from a size on, becomes one of jax, and stays so.
        Otherwise each call of compiled code would convert it, which takes 28 us for 400 bytes and 80 for 300 KB. Most
        batches are used once, and making an array of jax takes 100 us (one core of a CPU, benchmarks/functions.py).
        """
        values = [t if t.__class__ is np.ndarray else t._value for t in tensors]
        for i, (tensor, value) in enumerate(zip(tensors, values, strict=True)):
            if value.__class__ is np.ndarray and value is not tensor and value.nbytes >= from_bytes:
                if tensor._was_used and value.dtype != object:
                    device = self.worker.devices[0].jax_device
                    if device.platform == "cpu":
                        values[i] = tensor._value = placed(value, device)
                tensor._was_used = True
        return values

    def _run_seeded(
        self, op_def: OpDef, inputs: Sequence[EagerTensor], attrs: dict[str, Any], types: Sequence[DType], device: str
    ) -> list[Any]:
        """Runs a random operation. It takes its generator's state as an input, so that all seeds have one form."""
        name = stream_name(op_def.name, attrs, device)
        plain = {**attrs, "seed": 0, "seed2": 0}
        with self._streams.lock:
            state = np.array([attrs["seed"], self._streams.counter(name), attrs["seed2"]], np.uint64)
            given = [*inputs, EagerTensor(inputs[0].graph, state, uint64, device)]
            found = self.run_op(with_state(op_def), given, plain, types, device)
            self._streams.move_on(name, blocks_reserved(op_def, np.shape(found[0])))
        return found

    def run(self, signature: Signature, values: Sequence[Any]) -> list[Any]:
        """Runs a step of a signature."""
        return self.master.run(signature, values)[0]

    def restart_generators(self) -> None:
        """Makes the random ops of this process start again from their seeds."""
        self._streams.restart()
        if self._master is not None:
            worker = getattr(self._master.tasks.default, "worker", None)
            if worker is not None:
                worker.restart_generators(self._master.session)

    def release(self, handle: Handle) -> None:
        """Frees a resource that no program can name any more. The garbage collector calls this, at any time.

        Another task that holds it hears of it before its next step, or by `send_unused`.
        """
        self._released.append(handle)
        self.free()

    def send_unused(self) -> None:
        """Tells other tasks which resources they can free."""
        if self._master is not None:
            self._master.send_unused()

    def free(self) -> None:
        """Frees the resources that were released."""
        with self._lock:  # reentrant, as are the locks of resources: a collection may begin while they are held
            while self._released:
                handle = self._released.pop()
                self.repeated.forget(handle)
                master = self._master
                for key in self._of_handle.pop(handle.key, ()):
                    form = self._forms.pop(key, None)
                    if form is not None and master is not None:
                        master.forget(form)
                if master is not None and not handle.is_kept:
                    key = handle.attrs.get("container", ""), handle.attrs["shared_name"]
                    name, homes = self.device_of(handle).partition("/device:")[0], master.tasks.homes
                    task = master.tasks.find(name if homes is None else homes.find(name, key))
                    if task is not None:
                        task.free(key)

    @property
    def worker(self) -> Worker:
        """The worker of this process."""
        worker = self.master.tasks.default.worker
        assert worker is not None  # the default task is this process
        return worker

    def functions(self) -> Callable[[Function, Sequence[Any]], Callable[[Sequence[Any]], list[Any]]]:
        """Makes callables of function bodies and captured values, for what runs them outside of steps."""
        master, worker = self.master, self.worker
        with self._lock:
            if self._context[0] is not master:
                context = worker.context(master.session)
                context.bodies = _KeptByFunction()  # type: ignore[assignment]
                self._context = master, context
        return functools.partial(callable_body, self._context[1], worker.device_names[0])

    def _prepared(
        self, op_def: OpDef, inputs: Sequence[EagerTensor], attrs: dict[str, Any], types: Sequence[DType], device: str
    ) -> Signature:
        graph = Graph()
        placeholder = op_of("Placeholder")
        with graph.as_default():
            tensors: list[Tensor] = []
            fed: list[Tensor] = []
            for tensor in inputs:
                if isinstance(tensor._value, Handle):
                    tensors.append(node_for(graph, tensor._value))
                else:
                    parameter: Tensor = placeholder(dtype=tensor.dtype)
                    tensors.append(parameter)
                    fed.append(parameter)
            stream = {STREAM: stream_name(op_def.name, attrs, device)} if op_def.random else {}
            operation = graph.add_op(op_def, tensors, {**attrs, **stream}, types, op_def.name.lstrip("_"))
            operation.device = device
        return self.master.prepared(fed, operation.outputs, [operation])


class _KeptByFunction:
    """Compiled bodies, each kept by its function, so that they go together."""

    def get(self, key: tuple[Any, ...]) -> Any:
        return key[0].derived.get(("callable", *key[1:]))

    def __setitem__(self, key: tuple[Any, ...], body: Any) -> None:
        key[0].derived[("callable", *key[1:])] = body


def _devices(master: Master) -> list[Device]:
    """The devices of this process."""
    task = master.tasks.default
    return [] if task.worker is None else task.worker.devices


def _key(op_def: OpDef, inputs: Sequence[EagerTensor], attrs: dict[str, Any], device: str) -> Any:
    types = tuple([t._value.key if isinstance(t._value, Handle) else t.dtype for t in inputs])
    return op_def.name, hashable(attrs), device, types


def node_for(graph: Graph, handle: Handle) -> Tensor:
    """Adds the node that stands for a resource to a graph."""
    operation: Operation = graph.add_op(
        handle.op_def,
        (),
        dict(handle.attrs),
        output_types(handle.op_def, handle.attrs),
        handle.attrs.get("debug_name") or handle.op_def.name,
    )
    operation.device = runtime.device_of(handle)
    return operation.outputs[0]


@functools.cache
def with_state(op_def: OpDef) -> OpDef:
    """A random op type with the state of its generator as one more input."""

    def kernel(*arguments: Any, **attrs: Any) -> Any:
        return op_def.kernel(*arguments[:-1], key=arguments[-1], **attrs)

    return dataclasses.replace(
        op_def,
        name=f"{op_def.name}WithState",
        inputs=(*op_def.inputs, ArgDef("key", type=uint64)),
        kernel=kernel,
        random=False,
        wants=op_def.wants - {"key"},
    )


runtime = Runtime()
