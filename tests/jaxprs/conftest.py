"""Settings of these tests."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def wide_types() -> Iterator[None]:
    """64-bit types are on, as in every program of penstock."""
    with jax.enable_x64(True):
        yield
