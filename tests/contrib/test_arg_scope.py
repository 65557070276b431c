"""arg_scope: defaults of arguments, nested, reused, refused."""

from __future__ import annotations

from typing import Any

import pytest

import penstock.v1 as tf

slim = tf.contrib.slim


@slim.add_arg_scope
def layer(x: int, a: int = 1, b: int = 2, scope: Any = None) -> tuple[Any, ...]:
    return x, a, b, scope


@slim.add_arg_scope
def other(x: int, a: int = 1) -> tuple[int, int]:
    return x, a


def test_scopes_nest_and_arguments_win() -> None:
    with slim.arg_scope([layer, other], a=10):
        with slim.arg_scope([layer], b=20) as scope:
            assert layer(0) == (0, 10, 20, None)
            assert layer(0, a=5) == (0, 5, 20, None)
            assert other(0) == (0, 10)
        assert layer(0) == (0, 10, 2, None)
    assert layer(0) == (0, 1, 2, None)
    with slim.arg_scope(scope):
        assert layer(0, scope="s") == (0, 10, 20, "s")
    with slim.arg_scope([layer], a=7), slim.arg_scope([]):
        assert layer(1)[1] == 7


def test_what_is_refused() -> None:
    assert slim.has_arg_scope(slim.conv2d) and not slim.has_arg_scope(len)
    assert slim.arg_scoped_arguments(layer) == ["a", "b", "scope"]
    with pytest.raises(ValueError, match="not decorated"), slim.arg_scope([len], a=1):
        pass
    with pytest.raises(ValueError, match="no further arguments"), slim.arg_scope({}, a=1):
        pass
    with pytest.raises(TypeError, match="list of functions"), slim.arg_scope(3, a=1):
        pass
    with slim.arg_scope([layer], a=1), pytest.raises(TypeError, match="multiple values"):
        layer(0, 2)
