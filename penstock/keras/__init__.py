"""Keras models on penstock: their variables on parameter servers, their calls as nodes of graphs.

Keras computes with JAX. Importing this package chooses that backend, so import it before `keras`.
"""

from __future__ import annotations

import importlib.util
import os

os.environ.setdefault("KERAS_BACKEND", "jax")
_found = importlib.util.find_spec("keras")
if _found is None or _found.origin is None:  # without an origin it is a folder that happens to have the name
    raise ImportError("tf.keras needs Keras 3, which is not installed: pip install penstock[keras]")

import keras as _keras  # noqa: E402

if _keras.backend.backend() != "jax":
    raise ImportError(
        f"penstock runs Keras with its JAX backend, but Keras was loaded with '{_keras.backend.backend()}'. Set "
        "KERAS_BACKEND=jax, or import penstock.keras before keras."
    )

from penstock.eager.switch import enable_eager_execution as _enable_eager_execution  # noqa: E402
from penstock.keras import calls as _calls  # noqa: E402
from penstock.keras import checkpoints as _checkpoints  # noqa: E402
from penstock.keras import optimizers as _optimizers  # noqa: E402
from penstock.keras import trainer as _trainer  # noqa: E402
from penstock.keras import variables as _variables  # noqa: E402

_enable_eager_execution()
_variables.install()
_calls.install()
_optimizers.install()
_trainer.install()
_checkpoints.install()
