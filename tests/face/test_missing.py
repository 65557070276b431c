"""Missing names: the error names what exists."""

import re
import subprocess
import sys
import types

import pytest

from penstock.face import missing


def test_nearest_ignores_case_and_private_names():
    assert missing.nearest("Constant", ["constant", "_constant", "Session"]) == ["constant"]


def test_nearest_is_empty_when_nothing_is_like_it():
    assert missing.nearest("zzz", ["placeholder"]) == []


@pytest.mark.parametrize(
    ("known", "says"),
    [
        (["placeholder"], "The nearest name there is 'placeholder'."),
        (["placeholder", "placeholders"], "The nearest names there are 'placeholder', 'placeholders'."),
        (["Session"], "No name in 'tf' is like it"),
    ],
)
def test_missing_name_says_what_and_the_remedy(known, says):
    error = missing.missing_name("tf", "placehoder", known)
    assert isinstance(error, AttributeError)
    assert "'tf.placehoder' does not exist in penstock" in str(error)
    assert says in str(error)
    assert error.name == "placehoder"


def test_guard_is_a_module_getattr(monkeypatch):
    module = types.ModuleType("a_face")
    module.relu = object()
    module.__getattr__ = missing.guard("a_face")
    monkeypatch.setitem(missing.sys.modules, "a_face", module)
    assert module.relu is not None
    assert not hasattr(module, "elu_")
    with pytest.raises(AttributeError, match=r"'a_face.rellu' does not exist in penstock.*'relu'"):
        _ = module.rellu


def test_faces_are_guarded():
    import penstock.v1 as tf

    for module in (tf, tf.app, tf.compat, tf.errors, tf.flags, tf.gfile, tf.io, tf.io.gfile, tf.logging):
        with pytest.raises(AttributeError, match="does not exist in penstock"):
            _ = module.no_such_name
    with pytest.raises(AttributeError, match="'NotFoundError'"):
        _ = tf.errors.NotFoundErorr


GAPS = {
    "keras": "tf.layers",
    "keras.layers": "tf.layers",
    "contrib.keras": "tf.layers",
    "estimator": "MonitoredTrainingSession",
    "contrib.learn.Estimator": "MonitoredTrainingSession",
    "feature_column": "embedding_lookup_sparse",
    "contrib.layers.sparse_column_with_hash_bucket": "embedding_lookup_sparse",
    "saved_model": "tf.train.Saver",
    "debug": "tf.Print",
    "contrib.autograph": "tf.autograph.to_graph",
    "contrib.eager": "tf.enable_eager_execution",
    "distribute": "replica_device_setter",
}


@pytest.mark.parametrize(("path", "says"), GAPS.items(), ids=GAPS)
def test_what_is_missing_as_a_whole_has_a_message_of_its_own(path, says):
    import penstock.v1 as tf

    with pytest.raises(AttributeError) as caught:
        found = tf
        for name in path.split("."):
            found = getattr(found, name)
    assert "penstock has no" in str(caught.value) and says in str(caught.value)
    assert "nearest" not in str(caught.value)
    # The recommended name exists.
    for name in re.findall(r"tf\.([A-Za-z][\w.]*\w)", str(caught.value)):
        found = tf
        for part in name.split("."):
            found = getattr(found, part)


def test_penstock_itself_is_the_api_of_tensorflow_2():
    import penstock

    assert penstock.__version__ == "0.1.0"
    assert not hasattr(penstock, "placeholder")
    with pytest.raises(AttributeError, match=r"'penstock.v2.constnat' does not exist.*'constant'"):
        _ = penstock.constnat


@pytest.mark.parametrize("name", ["layers", "contrib", "app", "flags", "gfile", "logging"])
def test_folders_are_no_names_of_tensorflow_2(name):
    import penstock

    with pytest.raises(AttributeError, match=r"no name of TensorFlow 2.*tf\.compat\.v1"):
        getattr(penstock, name)


PROGRAM = """
import penstock.v1 as tf
tf.enable_eager_execution()
with tf.GradientTape() as tape:
    x = tf.constant(3.0)
    tape.watch(x)
    y = tf.function(lambda x: x * x)(x)
assert tape.gradient(y, x).numpy() == 6.0
assert x.shape.as_list() == [] and tf.ones([2]).shape[0].value == 2
v = tf.Variable(1.0)
tf.train.GradientDescentOptimizer(0.5).apply_gradients([(tf.constant(1.0), v)])
assert v.numpy() == 0.5
"""


def test_eager_execution_of_a_program_of_the_1x_api():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=120)


def test_eager_execution_comes_before_graphs():
    import penstock.v1 as tf

    tf.constant(1.0)
    with pytest.raises(ValueError, match="must be called at program startup"):
        tf.enable_eager_execution()


def test_functions_and_tapes_in_a_graph():
    import penstock.v1 as tf

    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.function(lambda x: x * x)(x)
        assert session.run([y, tape.gradient(y, x)], {x: 3.0}) == [9.0, 6.0]
