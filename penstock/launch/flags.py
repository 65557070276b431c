"""Flags that tell scripts their place in the cluster: `--ps_hosts --worker_hosts --job_name --task_index`.

The source of a script (and of the modules beside it that it imports) shows if it has such flags, without running it:
a flag is defined by `DEFINE_string("job_name", ...)` or is a string `"--job_name"` in the code. One such name alone
proves nothing (an experiment may have a `--job_name`), two do.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.launch.cluster import CHIEF, PS, WORKER, Cluster, LaunchError, Task

# The flags for a cluster. A script that defines two of the same meaning gets the first.
FLAGS = ("ps_hosts", "worker_hosts", "chief_hosts", "job_name", "task_index", "task_id")
_USUAL = ("ps_hosts", "worker_hosts", "job_name", "task_index")
_OPTION = re.compile(r"--([a-z]+[_-][a-z]+)=?")
_MAX_FILES = 200
# Names that only programs for clusters use. The last three read TF_CONFIG themselves.
_CLUSTER_NAMES = {"Server", "ClusterSpec", "Supervisor", "TFConfigClusterResolver", "RunConfig", "train_and_evaluate"}


@dataclass(frozen=True)
class ClusterFlags:
    """The flags that a script gets, as it spells them, and its own names for jobs.

    >>> flags = ClusterFlags({"job_name": "--job_name", "task_index": "--task_index"}, {"ps": "PS"})
    >>> flags.arguments(Cluster({"ps": ("127.0.0.1:2222",)}), Task("ps", 0))
    ['--job_name=PS', '--task_index=0']
    """

    options: Mapping[str, str] = field(default_factory=dict)
    jobs: Mapping[str, str] = field(default_factory=dict)

    def arguments(self, cluster: Cluster, task: Task) -> list[str]:
        """The arguments that tell `task` its place."""
        values = {
            "ps_hosts": ",".join(cluster.addresses.get(PS, ())),
            "worker_hosts": ",".join(cluster.addresses.get(WORKER, ())),
            "chief_hosts": ",".join(cluster.addresses.get(CHIEF, ())),
            "job_name": self.jobs.get(task.job, task.job),
            "task_index": str(task.index),
            "task_id": str(task.index),
        }
        return [f"{option}={values[name]}" for name, option in self.options.items()]


def flags_of(script: Path, args: Sequence[str], *, wanted: bool | None, chief: bool) -> ClusterFlags:
    """The flags to give to a script that is called with `args`, except those in `args`.

    `wanted` False gives none, True those that the script seems to define (the four usual ones if none are found), None
    gives those that are found.
    """
    try:
        _parse(script)
    except (OSError, SyntaxError, ValueError) as error:
        # Otherwise every task would print it, after every restart.
        raise LaunchError(f"the script '{script}' cannot be read: {error}. Give the path of a Python file.") from error
    if wanted is False:
        return ClusterFlags()
    seen = look(_trees(script))
    options = dict(seen.options)
    if wanted and not options:
        options = {name: f"--{name}" for name in (*_USUAL, *(["chief_hosts"] if chief else []))}
    elif not wanted and len(options) < 2:
        return ClusterFlags()
    given = set(_names(args))
    if chief and "worker_hosts" in options and "chief_hosts" not in options and "job_name" not in given:
        raise LaunchError(
            f"--chief was given, but '{script}' is told its cluster by flags and has none for the address of a chief "
            f"(--chief_hosts). Leave --chief out: worker 0 is the chief then; or give --no-flags if it reads TF_CONFIG."
        )
    if "task_index" in options:
        options.pop("task_id", None)
    return ClusterFlags({name: option for name, option in options.items() if name not in given}, seen.jobs)


def knows_clusters(script: Path) -> bool:
    """Tells if a script looks like a program for a cluster: it makes a server, or reads its place somewhere."""
    for node in (node for tree in _trees(script) for node in ast.walk(tree)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) if name in _CLUSTER_NAMES:
                return True
            case ast.Constant(value="TF_CONFIG"):
                return True
    return False


def look(trees: Iterator[ast.AST]) -> ClusterFlags:
    """The flags that code defines and the job names that it uses."""
    options: dict[str, str] = {}
    compared: set[str] = set()
    keys: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        match node:
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]) if _name(function).startswith(
                "DEFINE"
            ):
                if name in FLAGS:
                    options.setdefault(name, f"--{name}")
            case ast.Constant(value=str(text)) if option := _OPTION.fullmatch(text):
                if (name := option[1].replace("-", "_")) in FLAGS:
                    options.setdefault(name, f"--{option[1]}")
            case ast.Compare(left=left, comparators=[right]):
                for one, other in ((left, right), (right, left)):
                    if _name(one) == "job_name":
                        compared.update(_strings(other))
            case ast.Dict(keys=found):
                names = {text for key in found if key is not None for text in _strings(key)}
                if {PS, WORKER} <= {name.casefold() for name in names}:
                    keys |= names
    jobs = {job: _spelling(job, compared) or _spelling(job, keys) or job for job in (PS, CHIEF, WORKER)}
    return ClusterFlags({name: options[name] for name in FLAGS if name in options}, jobs)


def _spelling(job: str, literals: set[str]) -> str | None:
    """The spelling of a job name in code with these string literals."""
    if job in literals:
        return job
    return min((each for each in literals if each.casefold() == job), default=None)


def _name(node: ast.AST) -> str:
    """The last part of a name: `job_name` for `job_name`, `FLAGS.job_name` and `args["job_name"]`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
    return ""


def _strings(node: ast.AST) -> list[str]:
    """The string of a literal, or the strings in a literal list, tuple or set."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return [text for part in parts for text in _strings(part)]
    return []


def _names(args: Sequence[str]) -> Iterator[str]:
    """The names of the options among arguments."""
    for arg in args:
        if arg == "--":
            return
        if arg.startswith("-"):
            yield arg.lstrip("-").partition("=")[0].replace("-", "_")


def neighbours(script: Path) -> list[Path]:
    """The files beside a script that it imports, directly or indirectly."""
    return [path for path, _ in sources(script) if path != script]


def _trees(script: Path) -> Iterator[ast.AST]:
    return (tree for _, tree in sources(script))


def sources(script: Path) -> Iterator[tuple[Path, ast.AST]]:
    """The files and syntax trees of a script and of all modules beside it that it imports, directly or indirectly."""
    waiting = [script]
    seen: set[Path] = set()
    while waiting and len(seen) < _MAX_FILES:
        path = waiting.pop(0)
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        try:
            tree = _parse(path)
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue  # the script's own import reports the error
        yield path, tree
        waiting += _imported(tree, path, script.parent)


def _parse(path: Path) -> ast.AST:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(path.read_bytes(), str(path))


def _imported(tree: ast.AST, path: Path, root: Path) -> Iterator[Path]:
    """The paths that the modules imported by a file would have under `root`."""
    for node in ast.walk(tree):
        names: list[list[str]] = []
        folder = root
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            names = [[*base, alias.name] for alias in node.names]
            if node.level:
                folder = path.parents[min(node.level, len(path.parents)) - 1]
        for parts in names:
            for length in range(1, len(parts) + 1):
                module = folder.joinpath(*parts[:length])
                yield module.with_suffix(".py")
                yield module / "__init__.py"
