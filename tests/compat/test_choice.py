"""Which TensorFlow a program was written for."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.compat.choice import api_of

PROGRAMS = {
    "import tensorflow as tf\nx = tf.placeholder(tf.float32)": 1,
    "import tensorflow as tf\ntf.app.run()": 1,
    "import tensorflow as tf\ntf.train.Supervisor()": 1,
    "import tensorflow\ntensorflow.Session()": 1,
    "from tensorflow import Session": 1,
    "from tensorflow.contrib import slim": 1,
    "import tensorflow.contrib.slim as slim": 1,
    "import tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()": 1,
    "import tensorflow.compat.v1 as tf\nprint(tf.constant(1))": 1,
    "from tensorflow.compat import v1 as tf\ntf.Session()": 1,
    "from tensorflow.compat.v1 import Session": 1,
    "try:\n    import tensorflow.compat.v1 as tf\nexcept ImportError:\n    import tensorflow as tf\ntf.Session()": 1,
    "import tensorflow as tf\ntf.enable_eager_execution()\ntape = tf.GradientTape()": 1,
    "import tensorflow as tf\ntf.keras.layers.Dense(1)\ntf.placeholder(tf.float32)": 1,
    "import tensorflow as tf\n@tf.function\ndef f(x): return x": 2,
    "import tensorflow as tf\nwith tf.GradientTape() as tape: pass": 2,
    "import tensorflow as tf\ntf.compat.v1.disable_eager_execution()\ntf.compat.v1.Session()": 2,
    "import tensorflow as tf\nimport tensorflow.compat.v1 as tf1\ntf.constant(1)\ntf1.Session()": 2,
    "import tensorflow.compat.v2 as tf\ntf.constant(1)": 2,
    "import tensorflow as tf\nprint(tf.constant(1))": 2,
    "print('Session placeholder')": 2,
    "this is no Python": 2,
}


@pytest.mark.parametrize(("text", "api"), PROGRAMS.items())
def test_by_the_names_that_it_uses(text: str, api: int, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert api_of(script) == api


def test_modules_beside_the_script_count(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("from . import base\n")
    (tmp_path / "models" / "base.py").write_text(
        "import models\nimport tensorflow as tf\nx = tf.get_variable('x', [])\n"
    )
    script = tmp_path / "train.py"
    script.write_text("import tensorflow as tf\nfrom models import base\n")
    assert api_of(script) == 1
    (tmp_path / "models" / "base.py").write_text("import tensorflow as tf\nx = tf.Variable(1.0)\n")
    assert api_of(script) == 2


def test_a_name_that_another_module_imports(tmp_path: Path) -> None:
    (tmp_path / "common.py").write_text("import tensorflow as tf\n")
    script = tmp_path / "train.py"
    script.write_text("from common import tf\ntf.Session()\n")
    assert api_of(script) == 1
