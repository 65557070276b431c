"""The working directory of a job, for machines that do not have it."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.launch.cluster import LaunchError
from penstock.launch.flags import sources

_LARGEST = 100 << 20


@dataclass(frozen=True)
class WorkingDir:
    """The script's files here: those that other machines must have, and a package for machines that do not.

    The package has the current directory if the script is in it, or else the script's. Tasks that get it run there.
    """

    directory: Path
    script: Path

    @classmethod
    def of(cls, script: Path) -> WorkingDir:
        """The directory in which a script is started."""
        here, script = Path.cwd(), script.absolute()
        return cls(here if script.is_relative_to(here) else script.parent, script)

    @property
    def relative(self) -> str:
        """The script's path inside the package."""
        return str(self.script.relative_to(self.directory))

    def digests(self) -> dict[str, str]:
        """The SHA-256 of the script and of the modules beside it that it imports, by path."""
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path, _ in sources(self.script)}

    def package(self) -> bytes:
        """The directory as a ZIP file, without hidden files, caches and virtual environments."""
        packed, size = io.BytesIO(), 0
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as files:
            for path in _files(self.directory):
                size += path.stat().st_size
                if size > _LARGEST:
                    raise LaunchError(
                        f"'{self.directory}' is not on all nodes and has more than {_LARGEST >> 20} MiB of files, too "
                        f"many to send. Start from a directory that has little besides the program, or use a shared "
                        f"disk."
                    )
                files.write(path, path.relative_to(self.directory))
        return packed.getvalue()


def _files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        kept = [name for name in folders if name[0] != "." and name != "__pycache__"]
        folders[:] = sorted(name for name in kept if not Path(root, name, "pyvenv.cfg").exists())
        yield from (path for name in sorted(names) if name[0] != "." and (path := Path(root, name)).is_file())
