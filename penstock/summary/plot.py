"""Line plots as PNG files, drawn with Pillow, for the curves of a training."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

Line: TypeAlias = tuple[Sequence[float], Sequence[float]]
Point: TypeAlias = tuple[float, float]

_SCALE = 3  # drawn larger and then scaled down, for smooth lines
_INK, _GREY, _GRID, _PAPER = "#2b2b2b", "#6b6b6b", "#e4e4e4", "#ffffff"
_COLOURS = ("#2f6db5", "#d1662f", "#3b8f52", "#8a56a8", "#b5a22f")
_TEXT, _TITLE = 13, 16
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 66, 56  # the margins around the axes


@dataclass(frozen=True)
class Plot:
    """One pair of axes. `lines` are x and y values by name; a single line needs no legend.

    >>> Plot("Training", {"loss": ([0, 100, 200], [2.3, 0.4, 0.1])}, x_label="step", y_label="loss")
    """

    title: str
    lines: Mapping[str, Line]
    x_label: str = ""
    y_label: str = ""
    marks: bool = False  # a dot at each point
    from_zero: bool = False  # the y axis includes 0
    x_ticks: Sequence[float] = ()  # instead of round numbers
    log_x: bool = False  # the x axis is logarithmic, for positive values


def save(
    path: str | os.PathLike[str], *plots: Plot, size: tuple[int, int] = (640, 400), columns: int | None = None
) -> None:
    """Draws plots side by side, or in rows of `columns`, each of `size` pixels, and writes them as a PNG file.

    >>> save("loss.png", Plot("Training", {"loss": (steps, losses)}))
    """
    from PIL import Image, ImageDraw  # start-up

    width, height = size
    if not plots or width < 200 or height < 200:
        raise ValueError(f"save needs a plot and a size of at least 200 by 200, received {len(plots)} and {size}.")
    columns = len(plots) if columns is None else min(columns, len(plots))
    if columns < 1:
        raise ValueError(f"columns must be at least 1, received {columns}.")
    across, down = width * columns, height * math.ceil(len(plots) / columns)
    picture = Image.new("RGB", (across * _SCALE, down * _SCALE), _PAPER)
    for place, plot in enumerate(plots):
        row, column = divmod(place, columns)
        _Axes(ImageDraw.Draw(picture), plot, (width * column, height * row), size).draw()
    picture.resize((across, down), Image.Resampling.LANCZOS).save(path, "PNG", optimize=True)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from `low` to `high`, at most `most` + 1 of them: multiples of 1, 2, 2.5 or 5 times a power of ten.

    >>> ticks(0, 230)
    [0.0, 50.0, 100.0, 150.0, 200.0]
    """
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


class _Axes:
    """Maps the points of a plot to pixels of the finished picture."""

    def __init__(self, draw: ImageDraw, plot: Plot, corner: tuple[int, int], size: tuple[int, int]) -> None:
        self._draw, self._plot = draw, plot
        self._left, self._right = corner[0] + _LEFT, corner[0] + size[0] - _RIGHT
        self._top, self._bottom = corner[1] + _TOP, corner[1] + size[1] - _BOTTOM
        self._lines = [_finite(line) for line in plot.lines.values()]
        first, last = _range([x for line in self._lines for x, _ in line])
        from_zero = 0 < first < last / 10 and not plot.log_x  # steps count from 1, but the axis starts at 0
        self._x = 0.0 if from_zero else first, last
        self._place: Callable[[float], float] = math.log if plot.log_x else float
        low, high = _range([y for line in self._lines for _, y in line])
        if plot.from_zero:
            low, high = min(low, 0.0), max(high, 0.0)
        marks = ticks(low, high)
        # The axis ends at whole ticks, since the end of a curve between two ticks is hard to read.
        step = marks[1] - marks[0]
        self._y = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step

    def draw(self) -> None:
        """Draws the whole plot."""
        self._axis_marks()
        for place, line in enumerate(self._lines):
            self._curve(line, _COLOURS[place % len(_COLOURS)])
        middle = (self._left + self._right) / 2
        self._text((self._left, self._top - 50), self._plot.title, "la", _INK, _TITLE)
        self._text((self._left, self._top - 24), self._plot.y_label, "la", _GREY)
        self._text((middle, self._bottom + 30), self._plot.x_label, "ma", _GREY)
        if len(self._lines) > 1:
            self._legend()

    def _axis_marks(self) -> None:
        for y in ticks(*self._y):
            self._stroke([self._at(self._x[0], y), self._at(self._x[1], y)], _GRID, 1)
            self._text((self._left - 8, self._at(self._x[0], y)[1]), f"{y:,.10g}", "rm", _GREY)
        for x in self._plot.x_ticks or ticks(*self._x):
            place = self._at(x, self._y[0])
            self._stroke([place, (place[0], place[1] + 5)], _INK, 1)
            self._text((place[0], place[1] + 10), f"{x:,.10g}", "ma", _GREY)
        corner = (self._left, self._bottom)
        self._stroke([(self._left, self._top), corner, (self._right, self._bottom)], _INK, 1.2)

    def _curve(self, line: Sequence[Point], colour: str) -> None:
        points = [self._at(x, y) for x, y in line]
        if len(points) > 1:
            self._stroke(points, colour, 2)
        if self._plot.marks or len(points) == 1:
            for x, y in points:
                box = [(each + shift) * _SCALE for shift in (-3.5, 3.5) for each in (x, y)]
                self._draw.ellipse(box, fill=colour)

    def _legend(self) -> None:
        """Draws the names of the lines, from right to left in the row of the y label."""
        right = float(self._right)
        for place, name in reversed(list(enumerate(self._plot.lines))):
            self._text((right, self._top - 24), name, "ra", _INK)
            right -= self._draw.textlength(name, self._font(_TEXT)) / _SCALE + 6
            self._stroke([(right - 18, self._top - 16), (right, self._top - 16)], _COLOURS[place % len(_COLOURS)], 2)
            right -= 34

    def _at(self, x: float, y: float) -> Point:
        place, (first, last) = self._place, self._x
        across = (place(x) - place(first)) / (place(last) - place(first))
        up = (y - self._y[0]) / (self._y[1] - self._y[0])
        return self._left + across * (self._right - self._left), self._bottom - up * (self._bottom - self._top)

    def _stroke(self, points: Sequence[Point], colour: str, width: float) -> None:
        scaled = [(x * _SCALE, y * _SCALE) for x, y in points]
        self._draw.line(scaled, fill=colour, width=round(width * _SCALE), joint="curve")

    def _text(self, where: Point, text: str, anchor: str, colour: str, size: int = _TEXT) -> None:
        place = (where[0] * _SCALE, where[1] * _SCALE)
        self._draw.text(place, text, fill=colour, font=self._font(size), anchor=anchor)

    def _font(self, size: int) -> Any:
        from PIL import ImageFont  # start-up

        return ImageFont.load_default(size * _SCALE)


def _finite(line: Line) -> list[Point]:
    """The points of a line that can be drawn; a loss that became NaN ends its curve."""
    return [(x, y) for x, y in zip(*line, strict=True) if math.isfinite(x) and math.isfinite(y)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    """The smallest and the largest value, widened if they are equal."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low > 1e-12 * max(abs(low), abs(high)):
        return float(low), float(high)
    margin = abs(low) / 2 or 0.5
    return float(low - margin), float(high + margin)
