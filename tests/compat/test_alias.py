"""`import tensorflow` imports penstock."""

import importlib
import sys
import types

import pytest

import penstock.v1
from penstock.compat import alias, internals


@pytest.fixture(autouse=True)
def installed():
    alias.install()
    yield
    alias.uninstall()
    assert not any(name == "tensorflow" or name.startswith("tensorflow.") for name in sys.modules)
    assert alias._finder not in sys.meta_path


def test_the_root_is_the_face():
    import tensorflow as tf

    assert tf.__name__ == "tensorflow"
    assert tf is sys.modules["tensorflow"]
    assert tf.gfile is penstock.v1.gfile
    assert tf.__version__ == penstock.v1.__version__
    assert "gfile" in dir(tf) and "python" in dir(tf)


def test_compat_v1():
    import tensorflow.compat.v1 as tf
    from tensorflow.compat import v1
    from tensorflow.compat.v1 import gfile

    assert tf is v1 is sys.modules["tensorflow.compat.v1"]
    assert tf.errors is penstock.v1.errors
    assert gfile is penstock.v1.gfile
    assert tf.compat.as_bytes("x") == b"x"


def test_submodules_of_the_face():
    import tensorflow.app
    import tensorflow.io.gfile as files
    from tensorflow.app import flags

    assert tensorflow.app.run is penstock.v1.app.run
    assert flags is penstock.v1.flags
    assert files.exists is penstock.v1.io.gfile.exists


def test_internal_modules():
    import tensorflow.python.platform.tf_logging as tf_logging
    from tensorflow.python.framework import errors_impl, ops
    from tensorflow.python.platform import gfile

    assert gfile.Exists is penstock.v1.gfile.Exists
    assert errors_impl.NotFoundError is penstock.v1.errors.NotFoundError
    assert tf_logging.get_logger is penstock.v1.get_logger
    assert ops.__name__ == "tensorflow.python.framework.ops"
    assert isinstance(ops, types.ModuleType)
    assert ops is sys.modules["tensorflow.python.framework.ops"]


def test_messages_are_tensorboards():
    from tensorflow.core.framework import graph_pb2, variable_pb2
    from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
    from tensorflow.core.util import event_pb2

    for module in (graph_pb2, variable_pb2, config_pb2, rewriter_config_pb2, event_pb2):
        name = module.__name__.rpartition(".")[2]
        theirs = importlib.import_module(f"tensorboard.compat.proto.{name}")
        assert module.DESCRIPTOR is theirs.DESCRIPTOR
    assert graph_pb2.GraphDef().SerializeToString() == b""


def test_parts_are_reached_without_importing_them():
    import tensorflow as tf

    assert tf.python.platform.gfile.Exists is penstock.v1.gfile.Exists
    assert tf.core.framework.graph_pb2.GraphDef.DESCRIPTOR.full_name.endswith("GraphDef")


def test_star():
    names = {}
    exec("from tensorflow import *", names)
    assert names["gfile"] is penstock.v1.gfile


def test_a_module_that_the_face_has_as_an_attribute(monkeypatch):
    elsewhere = types.ModuleType("elsewhere")
    elsewhere.answer = 42
    monkeypatch.setattr(penstock.v1, "attribute", elsewhere, raising=False)
    from tensorflow.attribute import answer

    assert answer == 42


def test_names_are_looked_up_each_time(monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(penstock.v1, "fresh", 1, raising=False)
    assert tf.fresh == 1
    monkeypatch.setattr(penstock.v1, "fresh", 2)
    assert tf.fresh == 2


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("import tensorflow.gfil", "'tensorflow.gfile'"),
        ("from tensorflow import gfil", "'tensorflow.gfile'"),
        ("from tensorflow.python.framework import opss", "'tensorflow.python.framework.ops'"),
        ("import tensorflow.python.training.gfile", "'tensorflow.python.platform.gfile'"),
        ("from tensorflow.core.framework import graf_pb2", "'tensorflow.core.framework.graph_pb2'"),
        ("from tensorflow.app import flag", "'tensorflow.app.flags'"),
        ("import tensorflow.errors.NotFoundError", "write `from tensorflow.errors import NotFoundError`"),
    ],
)
def test_a_missing_module_names_the_nearest(statement, says):
    with pytest.raises(ImportError, match="penstock has no module 'tensorflow") as caught:
        exec(statement, {})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("from tensorflow import keras", "penstock has no Keras in the 1.x API"),
        ("from tensorflow.keras.layers import Dense", "penstock has no Keras in the 1.x API"),
        ("import tensorflow.compat.v1.estimator", "penstock has no Estimators"),
        ("from tensorflow.python import debug as tf_debug", "penstock has no debugger"),
        ("from tensorflow.python.saved_model import tag_constants", "penstock has no SavedModel"),
        ("from tensorflow.contrib.eager.python import tfe", "penstock has no contrib.eager"),
        ("import tensorflow.compat.v2 as tf", "penstock run --api 2"),
    ],
)
def test_a_module_that_is_missing_as_a_whole_says_so(statement, says):
    with pytest.raises(ImportError, match=says) as caught:
        exec(statement, {})
    assert "nearest" not in str(caught.value)


def test_a_missing_attribute_names_the_nearest():
    import tensorflow as tf

    with pytest.raises(AttributeError, match=r"'tensorflow.get_loger' does not exist in penstock.*'get_logger'"):
        _ = tf.get_loger
    with pytest.raises(AttributeError, match="'platform'"):
        _ = tf.python.platfrom
    assert not hasattr(tf, "__wrapped__")


def test_an_error_inside_a_module_is_seen(tmp_path, monkeypatch):
    (tmp_path / "broken_part.py").write_text("import no_such_library\n")
    monkeypatch.setattr(penstock.v1, "__path__", [*penstock.v1.__path__, str(tmp_path)])
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_library'"):
        importlib.import_module("tensorflow.broken_part")


def test_installing_twice_is_harmless():
    alias.install()
    assert sys.meta_path.count(alias._finder) == 1


def test_other_packages_are_left_alone():
    assert alias._finder.find_spec("tensorflow_datasets", None) is None
    assert alias._finder.find_spec("penstock", None) is None


def test_the_real_tensorflow_is_not_replaced(monkeypatch):
    alias.uninstall()
    real = types.ModuleType("tensorflow")
    real.__file__ = "/site/tensorflow/__init__.py"
    monkeypatch.setitem(sys.modules, "tensorflow", real)
    with pytest.raises(RuntimeError, match="TensorFlow itself is already imported, from '/site/tensorflow"):
        alias.install()
    assert alias._finder not in sys.meta_path
    monkeypatch.undo()


def test_the_table_is_well_formed():
    for path, sources in internals.MODULES.items():
        assert path.split(".")[0] in ("python", "core", "compat", "contrib"), path
        assert sources and all(source.split(".")[0] == "penstock" for source in sources), path
    assert not set(internals.FOLDERS) & set(internals.MODULES)


def test_modules_of_tensorflow_that_programs_import_by_path():
    from tensorflow.python.client import device_lib, timeline
    from tensorflow.python.framework import ops, tensor_shape
    from tensorflow.python.ops import array_ops, control_flow_ops, variable_scope
    from tensorflow.python.util import nest

    assert nest.flatten([1, (2,)]) == [1, 2]
    assert timeline.Timeline and ops.Graph is penstock.v1.Graph and tensor_shape.TensorShape is penstock.v1.TensorShape
    assert array_ops.concat is penstock.v1.concat and variable_scope.get_variable is penstock.v1.get_variable
    assert callable(control_flow_ops.with_dependencies)
    assert device_lib.list_local_devices()[0].name.endswith("device:CPU:0")
