"""Lets host ops call functions: `bodies` makes them, and is above the instructions."""

from __future__ import annotations

from penstock.worker.bodies import callable_body
from penstock.worker.owner import make_functions_by

make_functions_by(callable_body)
