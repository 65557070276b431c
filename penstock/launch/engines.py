"""The engines by name, for `penstock launch --on NAME`. Each is imported when it is chosen."""

from __future__ import annotations

from penstock.launch.cluster import LaunchError
from penstock.launch.engine import Place
from penstock.launch.on import On


def engine_named(name: On) -> Place:
    """The function that places tasks on an engine. LaunchError says why one cannot be used, and what to do."""
    match name:
        case On.LOCAL:
            from penstock.launch.local import place  # start-up

            return place
        case On.KUBERNETES:
            from penstock.launch.kubernetes.engine import place  # start-up

            return place
        case On.RAY | On.SLURM:
            raise LaunchError(f"this penstock has no engine for {name} yet. Use --on local.")
