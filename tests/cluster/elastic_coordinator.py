"""A coordinator whose workers join and leave while it schedules functions, each of which counts what it has visited.

It goes over a small dataset again and again until there is a file `finish`. Each element must be visited once by each
epoch. ELASTIC tells the folder, if the training is synchronous, and if it is a `Model.fit` in place of a loop.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import penstock as tf
from penstock.distribute.synchronous import GradientExchange

ELEMENTS, MOST_WORKERS = 60, 8
PAUSE = 0.1  # seconds between epochs, so that a test has few of them


def coordinate(resolver: Any, folder: Path, sync: bool) -> None:
    strategy = tf.distribute.ParameterServerStrategy(resolver, synchronous=sync)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        visited, used = tf.Variable(tf.zeros([ELEMENTS], tf.int32)), tf.Variable(tf.zeros([MOST_WORKERS], tf.int32))
        weight = tf.Variable(0.0)
    exchange = GradientExchange(strategy, [weight], lambda means: weight.assign_sub(means[0])) if sync else None

    def pipelines(context: Any) -> Any:
        return tf.data.Dataset.from_tensors(context.num_input_pipelines).repeat()

    @tf.function
    def step(elements: Any, others: Any) -> Any:
        visited.assign_add(tf.one_hot(next(elements), ELEMENTS, dtype=tf.int32))
        index = tf.distribute.coordinator.experimental_get_current_worker_index()
        used.assign_add(tf.one_hot(index, MOST_WORKERS, dtype=tf.int32))
        if exchange is not None:
            exchange.add([tf.constant(1.0)])
        return next(others)

    others = iter(coordinator.create_per_worker_dataset(lambda: strategy.distribute_datasets_from_function(pipelines)))
    epochs, seen = 0, set()
    while not (folder / "finish").exists():
        elements = iter(coordinator.create_per_worker_dataset(tf.data.Dataset.range(ELEMENTS), visit_once=True))
        results = [coordinator.schedule(step, args=(elements, others)) for _ in range(ELEMENTS)]
        epochs += 1
        seen |= {int(result.fetch()) for result in results}
        print(f"epoch {epochs} workers {coordinator.worker_count} used {used.numpy().tolist()}", flush=True)
        time.sleep(PAUSE)
    coordinator.join()
    found = {
        "epochs": epochs,
        "visited": visited.numpy().tolist(),
        "used": used.numpy().tolist(),
        "pipelines": sorted(seen),
        "updates": exchange.updates if exchange is not None else 0,
        "weight": float(weight.numpy()),
    }
    print(f"ends {json.dumps(found)}", flush=True)


def fit(resolver: Any, folder: Path) -> None:
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    class UntilToldToFinish(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            print(f"epoch {epoch + 1} workers {coordinator.worker_count}", flush=True)
            self.model.stop_training = (folder / "finish").exists()

    def rows(context: Any) -> Any:
        return tf.data.Dataset.from_tensors((tf.ones([8, 4]), tf.ones([8, 1]))).repeat()

    data = tf.keras.utils.experimental.DatasetCreator(rows)
    fitted = model.fit(data, epochs=10_000, steps_per_epoch=20, callbacks=[UntilToldToFinish()], verbose=0)
    found = {"epochs": len(fitted.epoch), "steps": int(model.optimizer.iterations.numpy())}
    print(f"ends {json.dumps(found)}", flush=True)


def main() -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        print(f"process {os.getpid()}", flush=True)
        tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
        ).join()
    settings = json.loads(os.environ["ELASTIC"])
    folder = Path(settings["folder"])
    if settings["fit"]:
        fit(resolver, folder)
    else:
        coordinate(resolver, folder, settings["sync"])


if __name__ == "__main__":
    main()
