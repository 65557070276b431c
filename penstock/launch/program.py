"""A script that was written for TensorFlow, and the running of it."""

from __future__ import annotations

import runpy
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Program:
    """A script and the arguments it is to see."""

    script: Path
    args: tuple[str, ...]

    def run(self) -> None:
        """Run the script as `python script args` would, with `import tensorflow` giving penstock."""
        from penstock.compat import alias

        alias.install()
        sys.argv = [str(self.script), *self.args]
        # In front, not in place of the first entry: penstock itself may have been found through that one.
        sys.path.insert(0, str(self.script.resolve().parent))
        runpy.run_path(str(self.script), run_name="__main__")

    def problem(self) -> str | None:
        """What is wrong with the script's path, None if nothing is.

        >>> Program(Path("none.py"), ()).problem()
        "the script 'none.py' does not exist. Give the path of a Python file."
        """
        if self.script.is_file():
            return None
        what = "is a directory" if self.script.is_dir() else "does not exist"
        return f"the script '{self.script}' {what}. Give the path of a Python file."
