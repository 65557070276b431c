"""The places where the steps of a model run: in this process, or on the workers of a coordinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.distribute.coordinator.coordinator import ClusterCoordinator
from penstock.distribute.parameter_server import ParameterServerStrategyV2
from penstock.eager.function import function
from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor

Result = Callable[[], Any]  # waits, and gives what a step has returned
WINDOW = 16  # executions that workers have at once, so that none waits for callbacks of others


def _last_of(step: Callable[[Any], Any], batches: Sequence[Any]) -> Any:
    result = None
    for batch in batches:
        result = step(batch)
    return result


class _Engine:
    """Keeps the steps of a model, and the functions made of them: a function is traced once."""

    def __init__(self) -> None:
        self.steps: dict[str, Callable[[Any], Any]] = {}
        self._functions: dict[Any, Any] = {}

    def _kept(self, key: Any, make: Callable[[], Callable[..., Any]]) -> Any:
        found = self._functions.get(key)
        if found is None:
            found = self._functions[key] = function(make(), autograph=False)
        return found


class Local(_Engine):
    """Runs steps in this process, one after the other."""

    window = 0

    def __init__(self, run_eagerly: bool) -> None:
        super().__init__()
        self._run_eagerly = run_eagerly

    def start(self, step: Callable[[Any], Any], batches: Sequence[Any]) -> Result:
        """Runs a step on each batch, and keeps what the last returns."""
        if self._run_eagerly:
            result = _last_of(step, nest.map_structure(_tensor, list(batches)))
        else:
            result = _last_of(self._kept(step, lambda: step), batches)
        return lambda: result

    def wait(self) -> None:
        """Waits for all steps: they have run."""


class Coordinated(_Engine):
    """Has the workers of a cluster run steps."""

    window = WINDOW

    def __init__(self, strategy: Any) -> None:
        super().__init__()
        self.coordinator = ClusterCoordinator(strategy)

    def start(self, step: Callable[[Any], Any], batches: Sequence[Any]) -> Result:
        """Has a worker run a step on each batch; these travel to it."""

        def run(data: Sequence[Any]) -> Any:
            return _last_of(step, data)

        data = nest.map_structure(_tensor, list(batches))
        return self.coordinator.schedule(self._kept((step, len(batches)), lambda: run), args=(data,)).get

    def start_on(self, step: Callable[[Any], Any], iterator: Any, count: int) -> Result:
        """Has a worker run a step on the next `count` elements of its own dataset."""

        def run(own: Any) -> Any:
            result = None
            for _ in range(count):
                result = step(next(own))
            return result

        return self.coordinator.schedule(self._kept((step, count, "own"), lambda: run), args=(iterator,)).get

    def wait(self) -> None:
        """Waits until all steps have run; raises the error of one that failed."""
        self.coordinator.join()


def _tensor(leaf: Any) -> Any:
    return None if leaf is None else convert_to_tensor(leaf)


def engine_for(model: Any) -> Local | Coordinated:
    """The engine of a model, kept until the model is compiled again."""
    kept = vars(model).get("_penstock_engine")
    marker = (model.optimizer, model._compile_loss, model.run_eagerly)
    if kept is None or any(a is not b for a, b in zip(kept[0], marker, strict=True)):
        strategy = model._penstock_strategy
        if isinstance(strategy, ParameterServerStrategyV2):
            engine: Any = Coordinated(strategy)
        else:
            engine = Local(model.run_eagerly)
        kept = (marker, engine)
        object.__setattr__(model, "_penstock_engine", kept)
    return kept[1]  # type: ignore[no-any-return]
