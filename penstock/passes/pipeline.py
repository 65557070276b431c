"""Pipeline: every pass, in the order in which they run.

A pass is a function from one Subgraph to another and changes neither: it returns the one it was given where it has
nothing to do. In the master `prune` makes the first Subgraph of a graph, and `partition` the parts of the last one. The
parameters of a pass, such as the devices there are, are bound here.

    prune -> replicas -> GRAPH -> placement -> PLACED -> over_tasks or over_devices -> partition -> WORKER -> plan
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

from penstock.passes.ask_once import ask_once
from penstock.passes.barriers import move_barriers
from penstock.passes.deal_ids import deal_ids
from penstock.passes.gather_once import gather_once
from penstock.passes.ir import Subgraph
from penstock.passes.join import join_transfers, join_variables
from penstock.passes.late_reads import read_late
from penstock.passes.on_host import kernels_on_host, lists_on_host
from penstock.passes.optimize import optimize
from penstock.passes.partition import task_of
from penstock.passes.place import place, put_on
from penstock.passes.plan_lookups import plan_lookups
from penstock.passes.relocate import Homes, on_task, relocate
from penstock.passes.replicas import follow_replicas
from penstock.passes.rows_on_host import rows_on_host
from penstock.passes.sparse_lookups import gather_before_segments
from penstock.passes.sparse_updates import fuse_sparse_updates, sum_before_sending, take_summed_rows
from penstock.passes.split import split

Pass = Callable[[Subgraph], Subgraph]

# The master, before it knows the devices.
GRAPH: tuple[Pass, ...] = (optimize,)

# The master, once all nodes have a device.
PLACED: tuple[Pass, ...] = (ask_once, gather_once, deal_ids, plan_lookups)

# A worker, on its partition and on each body that it runs by itself.
WORKER: tuple[Pass, ...] = (
    gather_before_segments,
    take_summed_rows,
    fuse_sparse_updates,
    rows_on_host,
    join_variables,
    read_late,
)


def replicas(added: int) -> tuple[Pass, ...]:
    """The master, before all others, if there are more or fewer replicas than the program was told of."""
    return (partial(follow_replicas, added=added),) if added else ()


def placement(devices: Sequence[str], soft: bool, homes: Homes | None = None) -> tuple[Pass, ...]:
    """The master, once it knows the devices; `homes` if tasks have joined or left since the job began."""
    if homes is None:
        return (partial(place, devices=devices, soft=soft),)
    # The program still names tasks that have left. They had the devices that their stand-ins have.
    left = [on_task(d, task) for task, there in homes.stand_ins.items() for d in devices if task_of(d) == there]
    named = [*devices, *left]
    return partial(place, devices=named, soft=soft), partial(relocate, homes=homes)


def over_tasks(devices: Sequence[str], soft: bool, keys: Iterator[int], homes: Homes | None = None) -> tuple[Pass, ...]:
    """The master, then, if there are several tasks; `keys` numbers the Sends."""
    wish_for = (homes or Homes()).wish_for
    last = partial(split, devices=devices, soft=soft, keys=keys, wish_for=wish_for)
    return (move_barriers, sum_before_sending, last, join_transfers)


def over_devices(
    devices: Sequence[str], soft: bool, keys: Iterator[int], homes: Homes | None = None
) -> tuple[Pass, ...]:
    """The master, then, if there is one task; `keys` numbers the nodes over several devices."""
    return (partial(split, devices=devices, soft=soft, keys=keys),) if len(devices) > 1 else ()


def body(device: str, placed: Collection[str] = ()) -> tuple[Pass, ...]:
    """A worker, on a body of a control-flow node on `device`. Nodes on one of the devices in `placed` stay there."""
    return (partial(put_on, device=device, unless=placed), lists_on_host, *WORKER)


def callable_body(device: str, in_numpy: bool) -> tuple[Pass, ...]:
    """A worker, on a body that a dataset calls, with what NumPy can run on the host or all compiled."""
    return (partial(put_on, device=device), *((kernels_on_host,) if in_numpy else ()), *WORKER)


def applied(passes: Iterable[Pass], subgraph: Subgraph) -> Subgraph:
    """The subgraph after all passes.

    >>> applied(WORKER, part.subgraph)
    """
    for each in passes:
        subgraph = each(subgraph)
    return subgraph
