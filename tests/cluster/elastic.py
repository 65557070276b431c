"""A training whose tasks join and leave: the loss of a step depends on the number of the step alone.

Every replica has the same data in a step, so that the mean of their gradients does not depend on how many they are.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import penstock.v1 as tf
from penstock.elastic.moving import Mover

WIDTH = 64
PAUSE = 0.02  # seconds between steps, so that a test has few of them


def say(text: str) -> None:
    print(text, flush=True)


class Model:
    """A network of two layers, trained by Adam, with variables on all parameter servers that the program knows of."""

    def __init__(
        self, cluster: dict[str, list[str]], worker: int, sync: bool, megabytes: int, device: Any = None
    ) -> None:
        setter = tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{worker}")
        with tf.device(device or setter):
            self.step = tf.train.get_or_create_global_step()
            random = tf.random_normal_initializer(stddev=0.1, seed=7)
            shapes = {"first": [WIDTH, WIDTH], "second": [WIDTH, WIDTH], "last": [WIDTH, 1]}
            w = {name: tf.get_variable(name, shape, initializer=random) for name, shape in shapes.items()}
            # State that is only moved: a tenth of it in each variable.
            rows = megabytes * (1 << 20) // 10 // 4
            self.ballast = [tf.get_variable(f"ballast_{i}", [rows], trainable=False) for i in range(10 if rows else 0)]
            self.token = tf.identity(self.step)
            rule: Any = tf.train.AdamOptimizer(0.01)
            replicas = len(cluster["worker"])
            self.rule = tf.train.SyncReplicasOptimizer(rule, replicas, replicas) if sync else None
            at = tf.cast(self.token, tf.float32)
            x = tf.sin(tf.reshape(tf.range(8.0 * WIDTH), [8, WIDTH]) * (at % 17.0 + 1.0))
            hidden = tf.nn.relu(tf.matmul(tf.nn.relu(tf.matmul(x, w["first"])), w["second"]))
            self.loss = tf.reduce_mean(tf.square(tf.matmul(hidden, w["last"]) - tf.cos(x[:, :1])))
            self.train = (self.rule or rule).minimize(self.loss, global_step=self.step)


def train(cluster: dict[str, list[str]], worker: int, target: str, settings: dict[str, Any]) -> None:
    """Trains until the file `finish` in the folder names a step. Prints the loss of each step, and how long it took."""
    folder = Path(settings["folder"])
    model = Model(cluster, worker, settings["sync"], settings.get("megabytes", 0))
    is_chief = worker == 0
    # Without surplus tokens no step has more than one gradient of a replica; but none may be lost with a server then.
    tokens = settings.get("tokens", 0)
    hooks: list[Any] = [] if model.rule is None else [model.rule.make_session_run_hook(is_chief, num_tokens=tokens)]
    filters = tf.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{worker}"])
    finish = folder / "finish"
    with tf.train.MonitoredTrainingSession(
        target,
        is_chief,
        str(folder / "train"),
        hooks=hooks,
        config=filters,
        save_checkpoint_secs=None,
        save_checkpoint_steps=50 if settings.get("checkpoints", True) else None,
        save_summaries_steps=None,
        log_step_count_steps=None,
    ) as session:
        last = time.monotonic()
        while not session.should_stop():
            loss, step, _ = session.run([model.loss, model.token, model.train])
            now = time.monotonic()
            say(f"step {step} loss {loss:.9f} after {now - last:.3f}")
            last = now
            if finish.exists() and step >= int(finish.read_text()):
                break
            time.sleep(PAUSE)
    say("ended")


def train_alone(steps: int) -> None:
    """Trains in one process, without a cluster."""
    model = Model({"ps": [""], "worker": [""]}, 0, sync=False, megabytes=0, device="/cpu:0")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(steps):
            loss, step, _ = session.run([model.loss, model.token, model.train])
            say(f"step {step} loss {loss:.9f}")


def stop_before(act: str) -> None:
    """Has this process stop itself when it is first asked for an act of a move, such as "list": steps are held then."""
    if not act:
        return
    asked = Mover.act

    def stop(mover: Mover, request: Any) -> Any:
        if request.act == act:
            Mover.act = asked  # type: ignore[method-assign]
            os.kill(os.getpid(), signal.SIGSTOP)
        return asked(mover, request)

    Mover.act = stop  # type: ignore[method-assign]


def main() -> None:
    settings = json.loads(os.environ.get("ELASTIC", "{}"))
    if "alone" in settings:
        train_alone(settings["alone"])
        return
    config = json.loads(os.environ["TF_CONFIG"])
    cluster, task = config["cluster"], config["task"]
    server = tf.train.Server(cluster, job_name=task["type"], task_index=task["index"])
    if task["type"] == "ps":
        stop_before(settings.get("stops_before", ""))
        say("serves")
        server.join()
    train(cluster, task["index"], server.target, settings)


if __name__ == "__main__":
    main()
