"""Settings that all tests share, in this process and in the ones that tests start.

**Precision.** On a GPU, jax multiplies float32 matrices in TF32 where cuBLAS or cuDNN has a kernel for the shapes:
10 bits instead of 23 after the point, and each process measures again which kernel to take. The tests check
that the right numbers are multiplied and added, and tolerances a thousand times wider would hide a missing term in
a long sum. So all run at jax's highest precision, which is float32 everywhere and changes nothing on a CPU. The tests
of jax's default precision, which users get, are in `ops/test_precision.py`.

**Memory.** Each process would take three quarters of the GPU's memory at once, and pytest runs two, which start others.

**Tracebacks.** A failing test should show the place in penstock.

**Interrupts.** What a script runs in the background ignores SIGINT, and so would all that the tests start.

**Hypothesis.** A slow machine is no failure.
"""

import os
import signal
from collections.abc import Iterator

import hypothesis
import pytest

hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")
os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("PENSTOCK_FULL_TRACEBACK", "1")
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out further variants of tests that take long, unless they are asked for: `make long`."""
    if "long" not in config.getoption("markexpr"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture
def nothing_on_disk() -> Iterator[None]:
    """Compiles every program, even if an earlier process has stored it on disk."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    before = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # jax reads it once per process
    yield
    jax.config.update("jax_enable_compilation_cache", before)
    compilation_cache.reset_cache()


@pytest.fixture
def exact_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles each segment for each of its shapes when it first runs."""
    monkeypatch.setenv("PENSTOCK_TIER", "exact")


@pytest.fixture(scope="session", autouse=True)
def _background() -> None:
    """Starts the background compiler thread, which lives as long as the process, so that no test seems to leak it."""
    from penstock.segments.compilation import in_background, wait_idle

    in_background(lambda: None, "tests")
    assert wait_idle(60)


@pytest.fixture(autouse=True)
def _execution(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs the tests of the V2 API eagerly, and those of the 1.x API with graphs: both may be in one process."""
    from penstock.eager.graph import the_graph
    from penstock.eager.switch import eager_execution
    from penstock.graph.recording import recorders

    recorders.items.clear()  # a program of another test may have left a tape open
    the_graph().seed = None  # or set a seed

    with eager_execution(request.path.parent.name in ("v2", "distribute", "keras")):
        yield
