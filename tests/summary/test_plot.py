"""Plots: lines, axes and legends are drawn at the right places."""

import numpy as np
import pytest
from PIL import Image

from penstock.summary.plot import Plot, save, ticks


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 230, [0, 50, 100, 150, 200]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-3, 3, [-3, -2, -1, 0, 1, 2, 3]),
        (1e-6, 3e-6, [1e-6, 1.5e-6, 2e-6, 2.5e-6, 3e-6]),
        (0, 12345, [0, 2500, 5000, 7500, 10000]),
    ],
)
def test_ticks_are_round_numbers(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def pixels(tmp_path, *plots, **options):
    save(tmp_path / "plot.png", *plots, **options)
    with Image.open(tmp_path / "plot.png") as picture:
        assert picture.format == "PNG"
        return np.asarray(picture.convert("RGB")).astype(int)


def blue(picture):
    """The pixels of the first line."""
    return np.argwhere(np.abs(picture - (0x2F, 0x6D, 0xB5)).max(-1) < 30)


def test_a_line_goes_from_corner_to_corner(tmp_path):
    drawn = pixels(tmp_path, Plot("t", {"y": ([0, 10], [0, 5])}, x_label="x", y_label="y"), size=(300, 200))
    assert drawn.shape == (200, 300, 3)
    (top, right), (bottom, left) = min(map(tuple, blue(drawn))), max(map(tuple, blue(drawn)))
    assert left < 70 and bottom > 140 and right > 270 and top < 70


def test_powers_of_ten_are_as_far_apart_on_a_logarithmic_axis_as_numbers_are_on_another(tmp_path):
    straight = pixels(tmp_path, Plot("t", {"y": ([0, 1, 2], [0, 5, 3])}), size=(300, 200))
    powers = Plot("t", {"y": ([1, 10, 100], [0, 5, 3])}, x_ticks=[1, 10, 100], log_x=True)
    assert (blue(pixels(tmp_path, powers, size=(300, 200))) == blue(straight)).all()


def test_plots_stand_side_by_side(tmp_path):
    one = Plot("a", {"y": ([1, 2, 3], [3, 2, 1]), "z": ([1, 2, 3], [1, 2, 3])}, marks=True, x_ticks=[1, 2, 3])
    drawn = pixels(tmp_path, one, Plot("b", {"y": ([1, 2], [4, 4])}, from_zero=True), size=(300, 200))
    assert drawn.shape == (200, 600, 3)
    assert all(len(blue(half)) for half in (drawn[:, :300], drawn[:, 300:]))


def test_plots_stand_in_rows(tmp_path):
    drawn = pixels(tmp_path, *[Plot("t", {"y": ([1, 2], [4, 4])})] * 3, size=(300, 200), columns=2)
    assert drawn.shape == (400, 600, 3)
    quarters = [drawn[y : y + 200, x : x + 300] for y in (0, 200) for x in (0, 300)]
    assert (quarters[0] == quarters[1]).all() and (quarters[0] == quarters[2]).all()
    assert len(blue(quarters[0])) and (quarters[3] == 255).all()


@pytest.mark.parametrize(
    "line", [([], []), ([1], [5]), ([1, 2], [7, 7]), ([1, 2, 3], [1, np.nan, np.inf]), ([0, 1], [-1e30, 1e30])]
)
def test_lines_with_little_in_them(tmp_path, line):
    pixels(tmp_path, Plot("t", {"y": line}), size=(200, 200))


def test_what_cannot_be_drawn(tmp_path):
    with pytest.raises(ValueError, match="at least 200 by 200"):
        save(tmp_path / "plot.png", Plot("t", {}), size=(100, 100))
    with pytest.raises(ValueError, match="columns must be at least 1, received 0"):
        save(tmp_path / "plot.png", Plot("t", {}), columns=0)
