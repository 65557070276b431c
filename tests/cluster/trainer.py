"""The program of the cluster tests: a task, or a client. It prints what it does, and waits where a test tells it to.

A test that wants a worker's next step to wait at a gate writes a file `worker0.moment` with the name of the gate.
Training ends at the step that the file `finish` names. Each step adds 1 to the global step and, if nothing is lost, to
`total`.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from pathlib import Path
from typing import Any

from gates import gate

import penstock.v1 as tf
from penstock.checkpoint.saveable_object import SaveableObject, SaveSpec

MOMENTS = ("pull", "push")
SIZE = 1 << 16  # elements of the variable that travels each way: enough for shared memory


def say(text: str) -> None:
    print(text, flush=True)


class Gated(SaveableObject):
    """A tensor whose save waits at a gate."""

    def __init__(self, tensor: Any) -> None:
        super().__init__(tensor, [SaveSpec(tensor, "", "gated", tensor.dtype, tensor.device)], "gated")

    def restore(self, restored_tensors: Any, restored_shapes: Any) -> Any:
        return tf.no_op()


class Model:
    """Variables on the parameter servers, and train ops that wait at gates."""

    def __init__(self, args: argparse.Namespace, cluster: dict[str, list[str]]) -> None:
        worker = f"/job:worker/task:{args.task}"
        on_ps = "/job:ps/task:0"
        setter = tf.train.replica_device_setter(cluster=tf.train.ClusterSpec(cluster), worker_device=worker)
        with tf.device(setter):
            self.step = tf.train.get_or_create_global_step()
            self.w = tf.get_variable("w", initializer=tf.zeros([SIZE]))
            self.total = tf.get_variable("total", initializer=tf.constant(0, tf.int64), trainable=False)
        with tf.device(worker):
            self.seen = tf.get_variable(
                "seen",
                initializer=tf.constant(0, tf.int64),
                trainable=False,
                collections=[tf.GraphKeys.LOCAL_VARIABLES],
            )
        with tf.device(worker):
            # A queue on the worker that is filled with the parameter server's help: it must outlive lost sessions.
            self.one = tf.constant(1.0)
            if args.input:
                queue = tf.FIFOQueue(4, tf.float32, shapes=[()], shared_name=f"input{args.task}")
                enqueue = queue.enqueue(tf.cast(self.step * 0 + 1, tf.float32))
                tf.train.add_queue_runner(tf.train.QueueRunner(queue, [enqueue]))
                self.one = queue.dequeue()
            if args.records:
                count = int(args.records.split(",")[args.task])
                records = tf.data.Dataset.from_tensors(1.0).repeat(count)
                self.one *= tf.data.make_one_shot_iterator(records).get_next()
        self.rule: Any = None
        self.train: dict[str, Any] = {}
        if args.sync:
            replicas = len(cluster["worker"])
            self.rule = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(1.0), replicas, replicas)
            with tf.device(setter):
                gradient = tf.minimum(tf.abs(self.w) + 1.0, self.one)
                self.train[""] = self.rule.apply_gradients([(gradient, self.w)], global_step=self.step)
        else:
            for moment in ("", *MOMENTS):
                self.train[moment] = self._step(moment, worker, on_ps)
        with tf.device(on_ps), tf.control_dependencies([gate("save")]):
            gated = tf.identity(self.total)
        self.first = self.w[0]
        self.gated_saver = tf.train.Saver([*tf.global_variables(), Gated(gated)])

    def _step(self, moment: str, worker: str, on_ps: str) -> Any:
        with tf.device(on_ps), tf.control_dependencies([gate("pull")] if moment == "pull" else []):
            pulled = tf.identity(self.w)
        with tf.device(worker):
            gradient = tf.minimum(tf.abs(pulled) + 1.0, self.one)
        with tf.device(on_ps):
            pushed = tf.identity(gradient)
            with tf.control_dependencies([pushed]):
                waits = [gate("push")] if moment == "push" else []
            # The counts depend on the gradient, and are all made together.
            with tf.control_dependencies([pushed, *waits]):
                return tf.group(
                    tf.assign_sub(self.w, pushed), tf.assign_add(self.total, 1), tf.assign_add(self.step, 1)
                )


class Control(tf.train.SessionRunHook):
    """Saves when a test asks for it, and ends the training at the step in the file `finish`."""

    def __init__(self, task: Task, model: Model) -> None:
        self._task = task
        self._model = model

    def after_create_session(self, session: Any, coord: Any) -> None:
        say(f"session at step {session.run(self._model.step)}")

    def before_run(self, run_context: Any) -> Any:
        return tf.train.SessionRunArgs(self._model.step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self._task.finish() is not None and run_context.session.run(self._model.step) >= self._task.finish():
            run_context.request_stop()

    def end(self, session: Any) -> None:
        say("end step {} total {} w {}".format(*session.run([self._model.step, self._model.total, self._model.first])))


class Task:
    """The role of the process, and the instructions of the test."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.folder = Path(args.folder)
        self.name = f"{args.job}{args.task}"
        self.is_chief = args.task == 0
        self.logdir = str(self.folder / "train") if args.checkpoints else None

    def moment(self) -> str:
        """The gate at which the next step must wait."""
        path = self.folder / f"{self.name}.moment"
        try:
            moment = path.read_text()
        except FileNotFoundError:
            return ""
        path.unlink()
        say(f"goes to the gate {moment}")
        return moment

    def finish(self) -> int | None:
        try:
            return int((self.folder / "finish").read_text())
        except FileNotFoundError:
            return None

    def held(self, what: str) -> None:
        """Waits while a file of the test exists."""
        if (self.folder / f"hold.{self.name}.{what}").exists():
            say(f"held at {what}")
            while (self.folder / f"hold.{self.name}.{what}").exists():
                time.sleep(0.02)

    def train(self, run: Any, stopped: Any, model: Model, save: Any) -> None:
        """Runs steps, and prints each when it is requested and when it is acknowledged."""
        while not stopped():
            self.held("step")
            moment = self.moment()
            say("try")
            if moment == "save":
                save()
            run(model.train[moment if moment in model.train else ""])
            say("ack")
            time.sleep(0.005)


def monitored(task: Task, model: Model, server: Any) -> None:
    """Trains with MonitoredTrainingSession."""
    hooks: list[Any] = [Control(task, model)]
    if model.rule is not None:
        hooks.append(model.rule.make_session_run_hook(task.is_chief))
    saver = tf.train.Saver(sharded=True)
    scaffold = tf.train.Scaffold(init_fn=lambda scaffold, session: task.held("init"), saver=saver)
    with tf.train.MonitoredTrainingSession(
        server.target,
        task.is_chief,
        task.logdir,
        hooks=hooks,
        scaffold=scaffold,
        save_checkpoint_steps=20,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=None,
        config=filters(task),
    ) as session:

        def save() -> None:
            def step_fn(step_context: Any) -> None:
                step = step_context.session.run(model.step)
                model.gated_saver.save(step_context.session, f"{task.logdir}/model.ckpt", step)

            session.run_step_fn(step_fn)

        task.train(session.run, session.should_stop, model, save)


def supervised(task: Task, model: Model, server: Any) -> None:
    """Trains with a Supervisor."""
    settings: dict[str, Any] = {}
    if model.rule is not None:
        rule = model.rule
        settings["local_init_op"] = tf.group(
            rule.chief_init_op if task.is_chief else rule.local_step_init_op, tf.local_variables_initializer()
        )
        settings["ready_for_local_init_op"] = rule.ready_for_local_init_op
        runner, tokens = rule.get_chief_queue_runner(), rule.get_init_tokens_op()
    supervisor = tf.train.Supervisor(
        is_chief=task.is_chief,
        logdir=task.logdir,
        global_step=model.step,
        save_model_secs=1,
        recovery_wait_secs=1,
        save_summaries_secs=1,
        init_fn=lambda session: task.held("init"),
        **settings,
    )
    session = supervisor.prepare_or_wait_for_session(server.target, config=filters(task))
    say(f"session at step {session.run(model.step)}")
    assert isinstance(session, tf.Session) and session.graph is tf.get_default_graph()
    if model.rule is not None and task.is_chief:
        supervisor.start_queue_runners(session, [runner])
        session.run(tokens)

    def stopped() -> bool:
        finish = task.finish()
        return supervisor.should_stop() or (finish is not None and session.run(model.step) >= finish)

    def save() -> None:
        model.gated_saver.save(session, f"{task.logdir}/model.ckpt", model.step)

    task.train(session.run, stopped, model, save)
    say("end step {} total {} w {}".format(*session.run([model.step, model.total, model.first])))
    supervisor.stop()
    session.close()


def count(task: Task, server: Any) -> None:
    """Adds 1 to a counter of the parameter server until there is a file `finish`, in a plain session."""
    with tf.device("/job:ps/task:0"):
        counter = tf.get_variable("counter", initializer=tf.constant(0, tf.int64), use_resource=True)
        large = tf.get_variable("large", initializer=tf.zeros([SIZE]), use_resource=True)
    with tf.device(f"/job:worker/task:{task.args.task}"):
        addend = tf.reduce_sum(tf.cast(large[:1], tf.int64)) + 1  # a pull from the parameter server, and a push
    add = tf.assign_add(counter, addend)
    ready = tf.report_uninitialized_variables([counter, large])
    session = tf.Session(server.target, config=filters(task))
    if task.is_chief and session.run(ready).size:
        session.run(tf.global_variables_initializer())
    while session.run(ready).size:
        time.sleep(0.01)
    while task.finish() is None:
        task.held("step")
        say("try")
        try:
            session.run(add.op)
        except tf.errors.UnavailableError as error:
            say(f"lost: {error.message}")
        else:
            say("ack")
    session.close()
    server.stop()


def wait_in_queue(task: Task, cluster: dict[str, list[str]]) -> None:
    """A client that is no task: waits in a queue of the parameter server."""
    with tf.device("/job:ps/task:0"):
        item = gate("client")
        held = tf.get_variable("held", initializer=tf.zeros([SIZE]))
    with tf.Session(f"grpc://{cluster['ps'][0]}") as session:
        session.run(held.initializer)
        say("waits")
        session.run(item)
        say("got one")


def filters(task: Task) -> Any:
    """Device filters, so that workers need not wait for each other."""
    return tf.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{task.args.task}"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cluster", type=json.loads)
    parser.add_argument("--folder")
    parser.add_argument("--job", default="")
    parser.add_argument("--task", type=int, default=0)
    parser.add_argument("--mode")
    parser.add_argument("--sync", type=int, default=0)
    parser.add_argument("--input", type=int, default=1)
    parser.add_argument("--checkpoints", type=int, default=1)
    parser.add_argument("--records", default="")
    args = parser.parse_args()
    tf.logging.set_verbosity(tf.logging.DEBUG if args.job == "ps" else tf.logging.INFO)
    task = Task(args)
    if not args.job:
        wait_in_queue(task, args.cluster)
        return
    server = tf.train.Server(args.cluster, job_name=args.job, task_index=args.task)
    say("serves")
    if args.job == "ps" or args.mode == "join":
        server.join()
    elif args.mode == "count":
        count(task, server)
    else:
        task.held("start")
        model = Model(args, args.cluster)
        {"monitored": monitored, "supervised": supervised}[args.mode](task, model, server)
        server.stop()
    say(f"ends with {[t.name for t in threading.enumerate() if t.name.startswith('penstock')]}")


if __name__ == "__main__":
    main()
