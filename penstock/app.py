"""`tf.app.run`: parses the flags, calls the program's `main`, and exits with its result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from absl import flags as absl_flags

from penstock import flags, logging


def run(main: Callable[[list[str]], Any] | None = None, argv: Sequence[str] | None = None) -> NoReturn:
    """Run `main` (by default the program's own) with the arguments that are not flags, and exit.

    It also makes INFO messages visible, such as steps per second, unless the program has set the verbosity itself.

    A program ends with this call:

        if __name__ == "__main__":
            tf.app.run()
    """
    entry = main if main is not None else getattr(sys.modules["__main__"], "main", None)
    if entry is None:
        raise ValueError(
            f"tf.app.run() found no function 'main' in '{sys.argv[0]}'. Define main(argv) there, or pass main=."
        )
    try:
        rest = flags.parse(sys.argv if argv is None else argv)
    except absl_flags.Error as error:
        print(f"{sys.argv[0]}: {error}\nPass --helpshort or --helpfull to see the flags.", file=sys.stderr)
        sys.exit(1)
    logging.show_infos()
    sys.exit(entry(rest))
