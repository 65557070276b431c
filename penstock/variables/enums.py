"""Settings of variables with copies on several devices: VariableSynchronization and VariableAggregation."""

from __future__ import annotations

import enum


class VariableSynchronization(enum.Enum):
    """Selects when the copies of a variable are synchronized."""

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


class VariableAggregation(enum.Enum):
    """Selects how the updates of several replicas are combined."""

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3
