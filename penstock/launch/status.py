"""The command `penstock status`: what the tasks of a running cluster do and hold."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import typer

DEADLINE = 3.0  # seconds: a task that has not answered by then is shown as such
MAX_THREADS = 64
_WIDTH = 160  # where there is no terminal to say


def status(
    address: Annotated[
        str | None,
        typer.Argument(metavar="HOST:PORT", help="The address of any task.", show_default="the job launched here"),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds that rates are of, and between two views.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object; with --watch, one per line.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="How many variables, and other things, to list.")] = 20,
) -> None:
    """Show the tasks of a running cluster, how fast they go and what they hold: `penstock status localhost:2222`.

    Without an address it is the job that `penstock launch` runs on this machine for this user. Credentials are taken
    from the directory that PENSTOCK_CREDENTIALS names. The exit code is 1 if nothing answers.
    """
    # Here, so that other commands do not wait for them.
    from rich.console import Console
    from rich.live import Live

    from penstock import errors
    from penstock.launch.cluster_screen import screen
    from penstock.wire.credentials import Credentials

    address = _of_running_job() if address is None else _checked(address)
    try:
        with Watch(address, Credentials.from_environment()) as cluster:
            views = cluster.views(interval)
            if as_json:
                for view in views:
                    print(json.dumps(view.as_dict(), indent=None if watch else 2), flush=True)
                    if not watch:
                        return
            console = Console()
            if not console.is_terminal and "COLUMNS" not in os.environ:
                console = Console(width=_WIDTH)
            if not watch or not console.is_terminal:
                for view in views:
                    console.print(screen(view, limit))
                    if not watch:
                        return
                    console.print()
            with Live(console=console, auto_refresh=False) as live:
                for view in views:
                    live.update(screen(view, limit), refresh=True)
    except errors.OpError as error:
        typer.echo(f"penstock status: {error.message}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(0 if watch else 130) from None
    except BrokenPipeError:  # nobody reads any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise typer.Exit(0) from None


def _of_running_job() -> str:
    """The address of a task of the only job of this user that runs here: one that answers, if any does."""
    from penstock.launch.running import running_jobs

    jobs = [job for job in running_jobs() if job.addresses]
    if not jobs:
        raise typer.BadParameter(
            "no job of `penstock launch` is running here for this user. Give the address of any task of a cluster.",
            param_hint="HOST:PORT",
        )
    if len(jobs) > 1:
        known = ", ".join(f"{next(iter(job.addresses.values()))} ({job.script})" for job in jobs)
        raise typer.BadParameter(f"{len(jobs)} jobs are running: give one of {known}.", param_hint="HOST:PORT")
    addresses = [_checked(address) for address in jobs[0].addresses.values()]
    return next(filter(_listens, addresses), addresses[0])


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), DEADLINE).close()
    except OSError:
        return False
    return True


def _checked(address: str) -> str:
    address = address.removeprefix("grpc://")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise typer.BadParameter(
            f"'{address}' is no address of a task. Give a host and a port, such as localhost:2222.",
            param_hint="HOST:PORT",
        )
    return address


class Watch:
    """Asks all tasks of the cluster that the task at an address belongs to.

    >>> with Watch("localhost:2222", None) as cluster: print(next(cluster.views(1.0)))
    """

    def __init__(self, address: str, credentials: Any) -> None:
        from penstock.errors import OpError, PermissionDeniedError, UnavailableError
        from penstock.launch.cluster import Task
        from penstock.launch.cluster_view import task_of

        self._credentials = credentials
        self._clients: dict[str, Any] = {}
        answer = self._ask(address)
        try:
            if isinstance(answer, PermissionDeniedError):
                raise PermissionDeniedError(
                    None, None, f"The task at {address} refused: {answer.message} PENSTOCK_CREDENTIALS must name the "
                    "credentials of this job.",
                )  # fmt: skip
            if isinstance(answer, OpError):
                raise UnavailableError(
                    None, None, f"Nothing answers at {address}: {_reason(answer)}. Is a task running there? Give the "
                    f"address of any task of the cluster. {_about_credentials(credentials)}",
                )  # fmt: skip
        except OpError:
            self.close()
            raise
        self.addresses = {
            Task(job.name, number): at for job in answer.cluster.job for number, at in sorted(job.tasks.items())
        }
        asked = task_of(answer.task)
        if asked is not None:
            self.addresses[asked] = address  # in its own words it may be another, such as one with port 0
        self._pool = ThreadPoolExecutor(min(MAX_THREADS, len(self.addresses) or 1), "penstock-status")

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        self.close()

    def close(self) -> None:
        """Ends the connections."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def views(self, interval: float) -> Iterator[Any]:
        """Views of the cluster, one every `interval` seconds."""
        from penstock.launch.cluster_view import view_of

        before = self.sample()
        due = time.monotonic() + interval
        while True:
            time.sleep(max(0.0, due - time.monotonic()))
            due = max(due, time.monotonic()) + interval
            now = self.sample()
            yield view_of(self.addresses, before, now)
            before = now

    def sample(self) -> dict[Any, Any]:
        """What each task says now: its Status, or why there is none."""
        return dict(zip(self.addresses, self._pool.map(self._ask_task, self.addresses), strict=True))

    def _ask_task(self, task: Any) -> Any:
        from penstock.errors import OpError
        from penstock.launch.cluster_view import task_of

        answer = self._ask(self.addresses[task])
        if isinstance(answer, OpError):
            return _reason(answer)
        found = task_of(answer.task)
        if found != task:
            return f"{found} is there. Do all tasks have the same ClusterSpec?"
        return answer

    def _ask(self, address: str) -> Any:
        """The Status of the task at an address, or the error."""
        from penstock.errors import OpError
        from penstock.wire.control import ControlClient

        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = ControlClient(address, self._credentials)
        try:
            return client.get_status(details=True, timeout=DEADLINE)
        except OpError as error:
            # A new connection next time: one that has failed waits longer and longer before it tries again.
            with contextlib.suppress(KeyError):
                self._clients.pop(address).close()
            return error


def _reason(error: Any) -> str:
    from penstock.errors import DeadlineExceededError

    if isinstance(error, DeadlineExceededError):
        return f"no answer within {DEADLINE:.0f} s"
    message = error.message.removeprefix("No answer from ").rstrip(".")
    return str(message.rpartition("Failed to connect to remote host: ")[2] or message)


def _about_credentials(credentials: Any) -> str:
    if credentials is None:
        return "If the job has credentials, set PENSTOCK_CREDENTIALS to their directory."
    return f"PENSTOCK_CREDENTIALS is '{credentials.directory}': if the job has no credentials or others, change that."
