"""penstock: TensorFlow's graph, session and parameter-server API on JAX.

>>> import penstock.v1 as tf
"""

from typing import NoReturn

__version__ = "0.1.0"


def __getattr__(name: str) -> NoReturn:
    # With `name` set Python adds no guess of its own to the traceback.
    raise AttributeError(
        f"'penstock.{name}' does not exist. The API is that of TensorFlow 1.x, in penstock.v1: write "
        "`import penstock.v1 as tf`.",
        name=name,
    )
