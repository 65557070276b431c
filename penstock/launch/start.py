"""The command `penstock launch`."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from penstock.launch.on import On
from penstock.launch.program import Program

_KUBERNETES = "Options for --on kubernetes"


def launch(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python script that imports tensorflow.")],
    args: Annotated[list[str] | None, typer.Argument(help="Passed to the script of every task.")] = None,
    ps: Annotated[int, typer.Option("--ps", help="Parameter servers.")] = 1,
    workers: Annotated[int, typer.Option("--workers", help="Workers.")] = 2,
    chief: Annotated[bool, typer.Option("--chief", help="A chief of its own; else worker 0 is the chief.")] = False,
    evaluator: Annotated[bool, typer.Option("--evaluator", help="A task of type evaluator besides.")] = False,
    max_restarts: Annotated[int, typer.Option(help="How often each task that fails is started again.")] = 3,
    grace: Annotated[float, typer.Option(help="Seconds that the others have when the chief is done.")] = 60.0,
    kill_after: Annotated[float, typer.Option(help="Seconds from SIGTERM to SIGKILL when tasks are stopped.")] = 10.0,
    log_dir: Annotated[Path | None, typer.Option(help="Where logs go.", show_default="a new temporary one")] = None,
    base_port: Annotated[int | None, typer.Option(help="The first of the ports.", show_default="free ones")] = None,
    on: Annotated[On, typer.Option("--on", help="Where the tasks run.")] = On.LOCAL,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="A running Ray cluster.", show_default="$RAY_ADDRESS")
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds until a Ray cluster must have room for all tasks.")] = 60.0,
    cpus: Annotated[str | None, typer.Option(metavar="N", help="CPUs of each task: 2, or ps=1,worker=4.")] = None,
    gpus: Annotated[str | None, typer.Option(metavar="N", help="GPUs of each task, in the same way.")] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory of each task: 4G, worker=8G.")] = None,
    image: Annotated[
        str | None, typer.Option(help="An image with penstock, in which the tasks run.", rich_help_panel=_KUBERNETES)
    ] = None,
    image_script: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="The script's path in the image; else it is sent.", rich_help_panel=_KUBERNETES
        ),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="Where pods run.", show_default="the current one", rich_help_panel=_KUBERNETES)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the manifests, and do nothing.", rich_help_panel=_KUBERNETES)
    ] = False,
    submit: Annotated[
        str | None, typer.Option(metavar="OPTIONS", help="For slurm: submit a job, with these options for sbatch.")
    ] = None,
    flags: Annotated[
        bool | None,
        typer.Option("--flags/--no-flags", help="Give tasks --job_name etc.", show_default="if the script has them"),
    ] = None,
) -> None:
    """Run a script on a cluster, on this machine or another engine: `penstock launch --workers 4 train.py --steps=100`.

    Each task gets TF_CONFIG and, where the script defines them, the flags --ps_hosts, --worker_hosts, --job_name and
    --task_index. The exit code is 0 if all workers end well, else that of the first task that failed for good.
    """
    from penstock.launch.cluster import LaunchError, Size  # start-up
    from penstock.launch.doorbell import listening  # start-up
    from penstock.launch.engine import Commands, Request  # start-up
    from penstock.launch.engines import engine_named, submitted  # start-up
    from penstock.launch.events import Events  # start-up
    from penstock.launch.flags import flags_of, knows_clusters  # start-up
    from penstock.launch.job import Policy  # start-up
    from penstock.launch.kubernetes.options import Pods  # start-up
    from penstock.launch.launcher import Launcher  # start-up
    from penstock.launch.output import Display, columns_for  # start-up
    from penstock.launch.remote import credentials_here  # start-up
    from penstock.launch.resources import Needs  # start-up
    from penstock.launch.running import announced  # start-up

    program = Program(script, tuple(args or ()))
    try:
        if problem := program.problem():
            raise LaunchError(problem)
        size = Size(ps, workers, chief, evaluator)
        policy = Policy(max_restarts, grace, kill_after)
        found = flags_of(script, program.args, wanted=flags, chief=chief)
        commands = Commands(program, found, columns_for(size.tasks))
        if on is not On.KUBERNETES and (image or image_script or namespace or dry_run):
            raise LaunchError(f"--image, --image-script, --namespace and --dry-run are for --on kubernetes, not {on}.")
        if address is not None and on is not On.RAY:
            raise LaunchError(f"--address is for --on ray, which may run already, received --on {on}.")
        pods = Pods(image or "", image_script, namespace, max_restarts)
        request = Request(size, commands, Needs.parse(cpus, gpus, memory), base_port, pods, address, wait)
        if dry_run:
            from penstock.launch.kubernetes.engine import manifests_text  # start-up

            typer.echo(manifests_text(request), nl=False)
            raise typer.Exit(0)
        if submit is not None:
            typer.echo(f"penstock launch: {submitted(on, submit, request, context, log_dir)}", err=True)
            return
        with ExitStack() as stack:
            place = engine_named(on)
            if on is not On.LOCAL:
                stack.enter_context(credentials_here())
            events = stack.enter_context(Events())
            engine = stack.enter_context(place(request, events))
            cluster = engine.cluster
            display = Display(cluster.tasks, log_dir or Path(tempfile.mkdtemp(prefix="penstock-")))
            try:
                if not (found.options or flags or knows_clusters(script)):
                    display.notice(
                        f"'{script}' makes no tf.train.Server and reads neither TF_CONFIG nor cluster flags, as far as "
                        f"can be seen: each of the {len(cluster.tasks)} tasks runs all of it by itself. "
                        f"`penstock run {script}` runs it once"
                    )
                told = f" and {' '.join(found.options.values())}" if found.options else ""
                places = [f"{task} at {cluster.places.get(str(task), 'no address')}" for task in cluster.tasks]
                display.notice(f"{', '.join(places)}: told by TF_CONFIG{told}; logs in {display.logs}")
                for text in engine.notices:
                    display.notice(text)
                started = time.monotonic()
                moved = None
                try:
                    moved = stack.enter_context(announced(str(script), cluster.places))
                except OSError as error:
                    display.notice(f"`penstock status` needs an address to find this job: {error}")
                try:
                    if moved is not None:
                        stack.enter_context(listening(events))
                except OSError as error:
                    display.notice(f"`penstock scale` cannot reach this job: {error}")
                code = Launcher(engine, events, policy, display, moved, commands).run()
                outcome = "done" if code == 0 else f"ended with exit code {code}"
                display.notice(f"{outcome} after {time.monotonic() - started:.1f} s; logs in {display.logs}")
            finally:
                display.close()
    except LaunchError as error:
        typer.echo(f"penstock launch: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:  # while tasks were being placed: later it is an event
        raise typer.Exit(130) from None
    raise typer.Exit(code)
