"""HParams: values by name, from strings and JSON."""

from __future__ import annotations

from typing import Any

import pytest

import penstock.v1 as tf


def made() -> Any:
    return tf.contrib.training.HParams(rate=0.1, layers=[128, 64], name="a", flag=True, count=3)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("rate=0.5", "rate", 0.5),
        ("rate=2", "rate", 2.0),
        ("count=7,name=b", "name", "b"),
        ("layers=[1,2,3]", "layers", [1, 2, 3]),
        ("layers[1]=5", "layers", [128, 5]),
        ("flag=false", "flag", False),
        ("flag=0,rate=1e-3", "rate", 1e-3),
        ("name=x/y-z", "name", "x/y-z"),
        ("", "count", 3),
    ],
)
def test_parse(text: str, name: str, value: Any) -> None:
    assert getattr(made().parse(text), name) == value


@pytest.mark.parametrize(
    "text", ["nothing=1", "count=1.5", "count=a", "flag=maybe", "rate", "rate=1,rate=2", "count=[1,2]", "layers[9]=1"]
)
def test_refused(text: str) -> None:
    with pytest.raises(ValueError):
        made().parse(text)


def test_set_and_show() -> None:
    hparams = made()
    hparams.add_hparam("late", 2)
    hparams.set_hparam("rate", 1)
    assert hparams.values()["rate"] == 1.0 and "late" in hparams and hparams.get("none", 4) == 4
    assert hparams.parse_json('{"count": 9}').count == 9
    assert tf.contrib.training.HParams(**hparams.values()).to_json() == hparams.to_json()
    assert str(tf.contrib.training.HParams(b=1, a="x")) == "[('a', 'x'), ('b', 1)]"
    hparams.del_hparam("late")
    assert "late" not in hparams
    with pytest.raises(ValueError, match="reserved"):
        hparams.add_hparam("rate", 1)
    with pytest.raises(ValueError, match="single-valued"):
        hparams.set_hparam("rate", [1.0])
    with pytest.raises(ValueError, match="Could not cast"):
        hparams.set_hparam("count", "many")
