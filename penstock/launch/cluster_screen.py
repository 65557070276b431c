"""A view of a cluster as tables and bars for a terminal."""

from __future__ import annotations

import itertools

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.launch.cluster_view import ClusterView, bars

LONGEST = 5  # segments that are listed by compile time
BAR = 40  # characters of the longest bar


def screen(view: ClusterView, limit: int = 20) -> RenderableType:
    """Tasks, their compilations, variables (the `limit` largest), other resources, and staleness."""
    parts = [
        _tasks(view),
        _work(view),
        _compilations(view),
        _variables(view, limit),
        _resources(view, limit),
        *_staleness(view),
    ]
    shown: list[RenderableType] = []
    for part in parts:
        if part is not None:
            shown += [Text(""), part] if shown else [part]
    return Group(*shown)


def _tasks(view: ClusterView) -> RenderableType:
    table = _table("task", "address", "incarnation", "up", "devices", ">sessions", ">graphs")
    problems: list[RenderableType] = []
    for task in view.tasks:
        if task.problem:
            table.add_row(_text(task.task, "red"), _text(task.address), Text("no answer", "red"))
            problems.append(_text(f"{task.task} does not answer: {task.problem}", "red"))
            continue
        table.add_row(
            _text(task.task, "bold"),
            _text(task.address),
            f"{task.incarnation:016x}"[:8],
            duration(task.uptime),
            _text(" ".join(task.devices)),
            str(len(task.sessions)),
            str(task.graphs),
        )
    return Group(table, *problems)


def _work(view: ClusterView) -> RenderableType | None:
    answered = [t for t in view.tasks if not t.problem]
    if not answered:
        return None
    table = _table("task", ">steps", ">steps/s", ">ms/step", ">failed", ">sent/s", ">received/s")
    for task in answered:
        table.add_row(
            _text(task.task, "bold"),
            f"{task.steps:,}",
            _number(task.steps_per_second),
            _number(task.milliseconds_per_step),
            Text(f"{task.failed_steps:,}", "red" if task.failed_steps else ""),
            _bytes_or_none(task.bytes_sent_per_second),
            _bytes_or_none(task.bytes_received_per_second),
        )
    return table


def _compilations(view: ClusterView) -> RenderableType | None:
    tasks = [t for t in view.tasks if t.compilations or t.loaded_programs]
    if not tasks:
        return None
    table = _table("task", ">compiled", ">took", ">last minute", ">took", ">from disk")
    for task in tasks:
        table.add_row(
            _text(task.task, "bold"),
            f"{task.compilations:,}",
            f"{task.compile_seconds:.1f} s",
            f"{task.compilations_last_minute:,}",
            f"{task.compile_seconds_last_minute:.1f} s",
            f"{task.loaded_programs:,}",
        )
    longest = sorted(((t, c) for t in tasks for c in t.compiled_segments), key=lambda pair: -pair[1].seconds)
    if not longest:
        return table
    segments = _table("task", "segment", ">compiled", ">took")
    for task, compiled in longest[:LONGEST]:
        segments.add_row(_text(task.task), _text(compiled.segment), f"{compiled.count:,}", f"{compiled.seconds:.1f} s")
    return Group(table, Text(""), segments)


def _variables(view: ClusterView, limit: int) -> RenderableType | None:
    found = sorted(((t, v) for t in view.tasks for v in t.variables), key=lambda pair: -pair[1].bytes)
    if not found:
        return None
    table = _table("task", "device", "variable", "type", "shape", ">bytes")
    for task, variable in found[:limit]:
        dims = ", ".join("?" if n is None else str(n) for n in variable.shape)
        size = size_of(variable.bytes) if variable.bytes else "none yet"
        name = _owned(variable.container, variable.name)
        table.add_row(_text(task.task), _text(variable.device), name, _text(variable.dtype), f"[{dims}]", size)
    total = f"{_count(len(found), 'variable')}, {size_of(sum(v.bytes for _, v in found))}"
    by_task = ", ".join(f"{t.task} {size_of(t.variable_bytes)}" for t in view.tasks if t.variables)
    return Group(table, _text(f"{_left_out(len(found), limit)}{total} ({by_task})", "dim"))


def _resources(view: ClusterView, limit: int) -> RenderableType | None:
    found = [(t, r) for t in view.tasks for r in t.resources]
    if not found:
        return None
    table = _table("task", "kind", "name", ">size", ">capacity")
    for task, resource in found[:limit]:
        size = "-" if resource.size is None else f"{resource.size:,}"
        capacity = "-" if resource.capacity is None else f"{resource.capacity:,}"
        full = resource.capacity is not None and resource.size is not None and resource.size >= resource.capacity
        name = _owned(resource.container, resource.name)
        table.add_row(_text(task.task), _text(resource.kind), name, Text(size, "yellow" if full else ""), capacity)
    rest = _left_out(len(found), limit)
    return Group(table, _text(rest.removesuffix("; "), "dim")) if rest else table


def _staleness(view: ClusterView) -> list[RenderableType | None]:
    shown: list[RenderableType | None] = []
    for task in view.tasks:
        title = f"Staleness of the updates on {task.task}: how many others came between read and write"
        shown.append(_histogram(title, "updates between", task.staleness))
        for resource in task.resources:
            owner = f"{resource.kind} '{resource.name}' on {task.task}"
            title = f"Staleness of the gradients of {owner}"
            shown.append(_histogram(title, "updates between", resource.staleness))
            title = f"How far workers of {owner} were ahead of the slowest"
            shown.append(_histogram(title, "clocks ahead", resource.clocks_ahead))
    return shown


def _histogram(title: str, unit: str, staleness: tuple[tuple[int, int], ...]) -> RenderableType | None:
    if not staleness:
        return None
    found = bars(staleness)
    most, total = max(count for _, count in found), sum(count for _, count in found)
    mean = sum(value * count for value, count in staleness) / total
    table = _table(f">{unit}", ">times", ">share", "")
    for label, count in found:
        bar = "█" * max(1, round(BAR * count / most)) if count else ""
        table.add_row(label, f"{count:,}", f"{count / total:.1%}", Text(bar, "cyan"))
    summary = f"{total:,} in all, mean {mean:.2f}, at most {staleness[-1][0]:,}"
    return Group(_text(title), table, _text(summary, "dim"))


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    return table


def _text(text: str, style: str = "") -> Text:
    """Text of another process, without markup and terminal control sequences."""
    return Text("".join(c if c.isprintable() else "?" for c in text), style)


def _owned(container: str, name: str) -> Text:
    return _text(f"{name} in container {container}" if container else name)


def _left_out(count: int, limit: int) -> str:
    return f"and {_count(count - limit, 'more', '')} (--limit); " if count > limit else ""


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _bytes_or_none(value: float | None) -> str:
    return "-" if value is None else size_of(value)


def size_of(value: float) -> str:
    """Formats a number of bytes for people.

    >>> size_of(532), size_of(1_300_000)
    ('532 B', '1.3 MB')
    """
    units = ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        del units[0]
    return f"{value:.0f} {units[0]}" if value >= 99.5 else f"{value:.3g} {units[0]}"


def duration(seconds: float) -> str:
    """Formats a time for people.

    >>> duration(42), duration(3700), duration(200_000)
    ('42s', '1h 1m', '2d 7h')
    """
    whole = int(seconds)
    for (unit, size), (smaller, part) in itertools.pairwise((("d", 86400), ("h", 3600), ("m", 60), ("s", 1))):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // part}{smaller}"
    return f"{whole}s"
