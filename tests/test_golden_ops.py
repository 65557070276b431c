"""Every recorded call of an op has TensorFlow's values, names, static shapes and gradients."""

from __future__ import annotations

import pytest
from golden_ops import ASPECTS, CASES, cases_with

# Cases that differ, by aspect, and the reason. Such a case must fail: once it agrees, remove it from the table.
_ROT90 = [f"image/image_rot90_{i}" for i in range(4)]
DIFFERENT: dict[str, dict[str, str]] = {
    "outputs": {},
    "names": dict.fromkeys(_ROT90, "the output of its cond is that of one If node here, of a Merge in TensorFlow"),
    "static shapes": {},
    "gradients": {
        **dict.fromkeys(_ROT90, "TensorFlow cannot differentiate it"),
        "nn/nn_conv2d_8": "TensorFlow cannot differentiate dilated convolutions on the CPU",
    },
}


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@pytest.mark.parametrize(
    ("aspect", "name"),
    [
        pytest.param(
            aspect,
            name,
            id=f"{aspect}-{name}",
            marks=[pytest.mark.xfail(strict=True, reason=DIFFERENT[aspect][name])] if name in DIFFERENT[aspect] else [],
        )
        for aspect in ASPECTS
        for name in cases_with(aspect)
    ],
)
def test_as_tensorflow(aspect: str, name: str) -> None:
    ASPECTS[aspect](CASES[name])
