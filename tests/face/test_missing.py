"""Missing names: the error names what exists."""

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
