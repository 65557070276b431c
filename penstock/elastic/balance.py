"""Decides which resources move when parameter servers join or leave: pure, by bytes.

Resources that belong together are one unit: those that a graph uses together, as a variable and its slots, and those
whose names are below that of a variable, as `w/Adam` and `w:0/grad_accum` are. A unit moves as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.errors import FailedPreconditionError
from penstock.passes.relocate import Key, Place

VARIABLE = "Variable"


@dataclass(frozen=True)
class Resource:
    """A resource of a parameter server."""

    task: str
    key: Key
    bytes: int
    kind: str = VARIABLE
    movable: bool = True
    bonds: tuple[Key, ...] = ()


@dataclass
class _Unit:
    task: str
    resources: list[Resource] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(resource.bytes for resource in self.resources)

    @property
    def movable(self) -> bool:
        return all(resource.movable for resource in self.resources)


def moves(resources: Sequence[Resource], servers: Sequence[str]) -> dict[Resource, str]:
    """The resources that move, each with its new task, if `servers` are those that there are from now on.

    >>> moves([Resource("a", ("", "w"), 8), Resource("a", ("", "v"), 8)], ["a", "b"])
    {Resource(task='a', key=('', 'v'), ...): 'b'}
    """
    units = _units(resources)
    held = {server: {r.key for r in resources if r.task == server} for server in servers}
    load = {server: sum(r.bytes for r in resources if r.task == server) for server in servers}
    moved: dict[Resource, str] = {}

    def move(unit: _Unit, to: str) -> None:
        for resource in unit.resources:
            moved[resource] = to
            held[to].add(resource.key)
        load[to] += unit.bytes
        if unit.task in load:
            load[unit.task] -= unit.bytes
        unit.task = to

    def least_loaded(unit: _Unit) -> str | None:
        free = [s for s in servers if not any(r.key in held[s] for r in unit.resources)]
        return min(free, key=load.__getitem__, default=None)

    by_size = sorted(units, key=lambda unit: -unit.bytes)
    for unit in by_size:
        if unit.task not in load:
            move(unit, _required(unit, least_loaded(unit)))
    for unit in by_size:
        to = least_loaded(unit)
        # Worth it if the fuller of the two is less full afterwards.
        if to is not None and unit.movable and unit.bytes and load[to] + unit.bytes < load[unit.task]:
            move(unit, to)
    return moved


def homes_after(
    homes: Mapping[Place, str], moved: Mapping[Resource, str], left: Collection[str] = ()
) -> dict[Place, str]:
    """The tasks of the resources that are not where the program has them, after a move.

    Others stand in for the servers in `left`, so that what they have is never where the program has it.
    """
    found = dict(homes)
    logical = {(home, container, name): task for (task, container, name), home in homes.items()}
    for resource, to in moved.items():
        task = logical.get((resource.task, *resource.key), resource.task)
        if to == task and task not in left:
            found.pop((task, *resource.key), None)
        else:
            found[task, *resource.key] = to
    return found


def _required(unit: _Unit, to: str | None) -> str:
    for resource in unit.resources:
        if not resource.movable:
            raise FailedPreconditionError(
                f"{unit.task} cannot leave: it holds the {resource.kind} '{resource.key[1]}', which cannot move."
            )
    if to is None:
        raise FailedPreconditionError(
            f"{unit.task} cannot leave: every server that stays has another '{unit.resources[0].key[1]}' already."
        )
    return to


def _units(resources: Sequence[Resource]) -> list[_Unit]:
    """Groups the resources of each task, as a union-find forest."""
    parents: dict[tuple[str, Key], tuple[str, Key]] = {}

    def root(of: tuple[str, Key]) -> tuple[str, Key]:
        while (parent := parents.setdefault(of, of)) != of:
            of = parent
        return of

    variables = {(r.task, r.key) for r in resources if r.kind == VARIABLE}
    for resource in resources:
        for key in (*resource.bonds, *_owners(resource, variables)):
            parents[root((resource.task, key))] = root((resource.task, resource.key))
    units: dict[tuple[str, Key], _Unit] = {}
    for resource in resources:
        units.setdefault(root((resource.task, resource.key)), _Unit(resource.task)).resources.append(resource)
    return list(units.values())


def _owners(resource: Resource, variables: set[tuple[str, Key]]) -> list[Key]:
    """The variables below whose names the resource's name is."""
    container, name = resource.key
    parts = name.split("/")
    above = ["/".join(parts[:i]).removesuffix(":0") for i in range(1, len(parts))]
    return [(container, each) for each in above if (resource.task, (container, each)) in variables]
