"""Writes files so that whoever reads one sees all of it, as it was or as it is now."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_aside(path: Path, content: bytes, suffix: str = "") -> None:
    """Writes a file beside `path`, which only this user can read, and renames it; nothing is left if that fails.

    `suffix` ends the name of the file until then.

    >>> write_aside(Path("record.json"), b"{}")
    """
    descriptor, aside = tempfile.mkstemp(suffix, dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
