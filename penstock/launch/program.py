"""Runs a script that was written for TensorFlow."""

from __future__ import annotations

import importlib.machinery
import os
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Program:
    """A script and its arguments. `script` may be the name of a module, as for `python -m`."""

    script: Path
    args: tuple[str, ...]
    is_module: bool = False
    api: int | None = None  # 1 or 2: the TensorFlow that it was written for; None: its source says

    def run(self) -> None:
        """Run the script as `python script args` would, with `import tensorflow` giving penstock."""
        from penstock.compat import alias  # start-up

        alias.install(self.api or self._api())
        if self.is_module:
            sys.path.insert(0, os.getcwd())
            sys.argv = [str(self.script), *self.args]  # runpy replaces the module's name by its file
            runpy.run_module(str(self.script), run_name="__main__", alter_sys=True)
            return
        sys.argv = [str(self.script), *self.args]
        # In front, not instead of the first entry, through which penstock itself may have been found.
        sys.path.insert(0, str(self.script.resolve().parent))
        runpy.run_path(str(self.script), run_name="__main__")

    def _api(self) -> int:
        from penstock.compat.choice import api_of  # start-up

        if not self.is_module:
            return api_of(self.script)
        path = Path(*str(self.script).split("."))
        package = path / "__main__.py"
        return api_of(package if package.is_file() else path.with_suffix(".py"), Path.cwd())

    def problem(self) -> str | None:
        """Describes the problem with the script's path; None if there is none.

        >>> Program(Path("none.py"), ()).problem()
        "the script 'none.py' does not exist. Give the path of a Python file."
        """
        if self.is_module:
            return self._problem_of_module()
        if self.script.is_file():
            return None
        what = "is a directory" if self.script.is_dir() else "does not exist"
        return f"the script '{self.script}' {what}. Give the path of a Python file."

    def _problem_of_module(self) -> str | None:
        # Only the package is searched for: searching inside would import it before `tensorflow` is set up.
        package = str(self.script).partition(".")[0]
        if package and importlib.machinery.PathFinder.find_spec(package, [os.getcwd(), *sys.path]):
            return None
        return f"there is no module '{self.script}'. Give a name that can be imported, such as project.train."
