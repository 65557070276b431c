"""Has host ops that call functions get them from `bodies`, which is above the instructions."""

from __future__ import annotations

from penstock.worker.bodies import callable_body
from penstock.worker.owner import make_functions_by

make_functions_by(callable_body)
