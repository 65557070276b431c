"""Small updates that wait at the same time run in one call of XLA, one after the other.

With many workers a parameter server has several steps at hand whenever it looks. What a call costs besides the update
itself is then paid once for all of them, and the variables stay in the processor's caches meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock.graph.checks import NotTraceable
from penstock.segments.compilation import Program, in_background
from penstock.segments.running import Company
from penstock.segments.segment import Segment

COUNTS = (8, 4, 2)  # of steps in one call, which code is compiled for
OFTEN = 20  # so many times steps must have met in the same number before code is compiled for that
MOST_BYTES = 1 << 22  # of the variables: with more the update itself takes nearly all of the time


class Together(Company):
    """Runs a segment for several steps whose inputs have the same shapes.

    >>> Together(segment).run([values_of_one_step, values_of_another])
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._met: Counter[int] = Counter()  # how often so many steps met for which there is no code
        self._counts: set[int] = set()  # numbers of steps for which there is code

    @staticmethod
    def pays(segment: Segment) -> bool:
        """Tells if it may be run for several steps, and if that saves time."""
        if segment.platform != "cpu" or segment.random or segment.plan.static or segment.assigned:
            return False
        return 0 < sum(variable.declared_bytes for variable in segment.updated_variables) <= MOST_BYTES

    def run(self, every: Sequence[list[Any]]) -> int:
        fitting = [count for count in COUNTS if count <= len(every)]
        if fitting and fitting[0] not in self._counts:
            self._met[fitting[0]] += 1
            if self._met[fitting[0]] == OFTEN:
                self._prepare(fitting[0], every[0])
        count = next((count for count in fitting if count in self._counts), 0)
        if count:
            self._segment.run_for(every[:count], {}, quick=True)
        return count

    def _prepare(self, count: int, values: list[Any]) -> None:
        segment = self._segment
        program = Program(segment.program.log, segment.name, kind="together")
        compiled, forms = segment.to_compile(values, count)

        def compile_together() -> None:
            try:
                with program.compiling():
                    segment.compile(compiled, forms)
            except NotTraceable:
                return  # a check in it may fail, which must leave the other steps alone
            self._counts.add(count)

        in_background(compile_together, segment.name, segment.program.log)
