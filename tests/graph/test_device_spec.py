"""Device specs against TensorFlow's: parsing, printing, merging."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from golden_programs import check, err, load

from penstock.graph import device
from penstock.graph.device import DeviceSpec, DeviceSpecV2

GOLDEN = load("semantics/device_spec.json")
CLASSES = {"tf.DeviceSpec": DeviceSpec, "tf2.DeviceSpec": DeviceSpecV2}
FIELDS = ("job", "replica", "task", "device_type", "device_index")


def outcome(make: Any) -> dict[str, Any]:
    """The record of a golden row: a spec, or the error in making it."""
    try:
        spec = make()
    except Exception as error:
        return {"raises": type(error).__name__}
    return {"fields": {name: getattr(spec, name) for name in FIELDS}, "to_string": spec.to_string()}


def expected(row: dict[str, Any]) -> dict[str, Any]:
    if "raises" in row:
        return {"raises": row["raises"]["exception"]}
    return {"fields": row["fields"], "to_string": row["to_string"]}


@pytest.mark.parametrize("row", GOLDEN["from_string"], ids=lambda row: f"{row['class']} {row['string']!r}")
def test_from_string(row: dict[str, Any]) -> None:
    assert outcome(lambda: CLASSES[row["class"]].from_string(row["string"])) == expected(row)


@pytest.mark.parametrize("row", GOLDEN["constructor"], ids=lambda row: str(row["kwargs"]))
@pytest.mark.parametrize("cls", CLASSES.values())
def test_constructor(row: dict[str, Any], cls: type[DeviceSpecV2]) -> None:
    kwargs = dict(row["kwargs"])
    if row.get("to_string") == "/job:b'ps'":  # JSON has no bytes
        kwargs["job"] = b"ps"
    assert outcome(lambda: cls(**kwargs)) == expected(row)


@pytest.mark.parametrize("row", GOLDEN["merge"], ids=lambda row: f"{row['base']!r} {row['other']!r}")
def test_merge(row: dict[str, Any]) -> None:
    base, other = DeviceSpec.from_string(row["base"]), DeviceSpec.from_string(row["other"])
    base.merge_from(other)
    assert base.to_string() == row["base.merge_from(other)"]
    merged = row["v2 base.make_merged_spec(other)"]
    v2 = DeviceSpecV2.from_string(row["base"]).make_merged_spec(DeviceSpecV2.from_string(row["other"]))
    assert v2.to_string() == merged
    assert device.merge_names(row["base"], row["other"]) == merged
    assert device.merge_device(row["base"])(SimpleNamespace(device=row["other"])) == merged


def test_misc_program() -> None:
    row = next(row for row in GOLDEN["programs"] if row["id"] == "device_spec_misc")
    internal = "__import__('tensorflow.python.framework.device', fromlist=['x'])"
    assert internal in row["program"]
    program = row["program"].replace(internal, "device")
    check({**row, "program": program}, SimpleNamespace(DeviceSpec=DeviceSpec), device=device)


def test_v2_is_immutable() -> None:
    spec = DeviceSpecV2(job="ps")
    row = next(row for row in GOLDEN["programs"] if row["id"] == "device_spec_v2_immutable")
    result = [
        err(setattr, spec, "task", 3),
        spec.replace(task=3).to_string(),
        spec == DeviceSpecV2.from_string("/job:ps"),
    ]
    assert result == row["result"]


def test_v1_attributes_convert_like_the_constructor() -> None:
    spec = DeviceSpec(job="a")
    spec.job, spec.replica, spec.device_type, spec.device_index = None, "1", "gpu", "5"
    assert spec.to_string() == "/replica:1/device:GPU:5"
    spec.device_type = spec.device_index = None
    assert spec.to_string() == "/replica:1"
    with pytest.raises(ValueError, match="'x'"):
        spec.task = "x"
    with pytest.raises(AttributeError):
        spec.tsak = 1  # type: ignore[attr-defined]


def test_a_changed_spec_leaves_others_alone() -> None:
    one, two = DeviceSpec.from_string("/job:ps"), DeviceSpec.from_string("/job:ps")
    one.task = 3
    assert two.to_string() == "/job:ps"
    assert DeviceSpec.from_string("/job:ps").to_string() == "/job:ps"


def test_equality_is_by_class_and_value() -> None:
    assert DeviceSpec(job="a") == DeviceSpec(job="a")
    assert DeviceSpec(job="a") != DeviceSpec(job="b")
    assert DeviceSpec(job="a") != DeviceSpecV2(job="a")
    assert DeviceSpecV2(job="a") != DeviceSpec(job="a")
    assert DeviceSpec() != "x"
    assert hash(DeviceSpec(job="a")) == hash(DeviceSpecV2(job="a"))


@pytest.mark.parametrize(
    ("name", "canonical"),
    [("/Gpu:0", "/device:GPU:0"), ("/device:tpu:0", "/device:tpu:0"), ("/custom:0", "/device:CUSTOM:0"), (None, "")],
)
def test_canonical_name(name: str | None, canonical: str) -> None:
    assert device.canonical_name(name) == canonical
    assert device.canonical_name(DeviceSpec.from_string(name)) == canonical


@pytest.mark.parametrize(
    ("spec", "node", "merged"),
    [
        ("/job:a/task:1", "/job:b", "/job:b/task:1"),
        ("/cpu:*", "/job:b/cpu:1", "/job:b/device:CPU:1"),
        ("/gpu:2", "/job:b/device:GPU:*", "/job:b/device:GPU:2"),
        ("/gpu:2", "/job:b/cpu", "/job:b/device:CPU:2"),
        (None, "/job:b/cpu", "/job:b/device:CPU:*"),
        (DeviceSpec(task=3), "/job:b", "/job:b/task:3"),
        ("/job:a", "", "/job:a"),
    ],
)
def test_merge_device_prefers_the_node(spec: Any, node: str, merged: str) -> None:
    assert device.merge_device(spec)(SimpleNamespace(device=node)) == merged


def test_validity() -> None:
    device.check_valid("/cpu:0")
    with pytest.raises(ValueError, match="'/foo': unknown attribute 'foo'"):
        device.check_valid("/foo")
    with pytest.raises(ValueError, match="unknown attribute"):
        device.merge_device("/foo")
    assert device.is_device_spec(DeviceSpec())
    assert device.is_device_spec(DeviceSpecV2())
    assert not device.is_device_spec("/cpu:0")
