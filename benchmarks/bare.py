"""The least that training on a parameter server takes: JAX, and one socket per worker. A ceiling for scaling.py.

The server has a thread for each worker and all parameters in one vector. In each step a worker sends its gradient and
gets the new parameters: one round trip, no graph, no variables, no failures. It trains the network of peer_programs.py.
"""

from __future__ import annotations

import functools
import multiprocessing as mp
import os
import socket
import threading
import time
from typing import Any

import numpy as np

SHAPES = [(784, 100), (100,), (100, 10), (10,)]
SIZES = [int(np.prod(shape)) for shape in SHAPES]
COUNT = sum(SIZES)
WARM = 50  # steps of each worker before its clock runs


def read_into(connection: socket.socket, array: np.ndarray) -> bool:
    """Fills an array with what comes, and tells if all came."""
    view = memoryview(array).cast("B")
    while view.nbytes:
        size = connection.recv_into(view)
        if not size:
            return False
        view = view[size:]
    return True


def serve(listener: socket.socket, cost: Any) -> None:
    """Runs in the process of the parameter server; `cost` is a shared number: its processor time per warm step."""
    import jax
    import jax.numpy as jnp

    @functools.partial(jax.jit, donate_argnums=(1, 2))
    def adam(weights: Any, mean: Any, square: Any, gradient: Any, step: Any) -> tuple[Any, Any, Any]:
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        rate = 0.001 * jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        return weights - rate * mean / (jnp.sqrt(square) + 1e-8), mean, square

    random = np.random.RandomState(0)
    weights = np.concatenate([random.randn(size) * (0.05 if size > 100 else 0.0) for size in SIZES])
    state = [jnp.asarray(weights, jnp.float32), jnp.zeros(COUNT), jnp.zeros(COUNT)]
    steps, lock, cold = 0, threading.Lock(), (0, 0.0)

    def answer(connection: socket.socket) -> None:
        nonlocal steps, cold
        gradient = np.empty(COUNT, np.float32)
        with connection:
            while read_into(connection, gradient):
                with lock:
                    steps += 1
                    state[:] = adam(*state, gradient, np.float32(steps))
                    fresh = state[0]
                connection.sendall(np.asarray(fresh))
                if steps <= WARM:
                    cold = steps, time.process_time()
                else:
                    cost.value = (time.process_time() - cold[1]) / (steps - cold[0])

    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def train(index: int, port: int, steps: int, ready: Any, rates: Any) -> None:
    """Runs in the process of a worker, and puts its steps per second into `rates`."""
    import jax
    import jax.numpy as jnp

    def loss(flat: Any, images: Any, labels: Any) -> Any:
        w1, b1, w2, b2 = map(jnp.reshape, jnp.split(flat, np.cumsum(SIZES)[:-1]), SHAPES)
        logits = jax.nn.relu(images @ w1 + b1) @ w2 + b2
        return -jnp.mean(jnp.sum(labels * jax.nn.log_softmax(logits), 1))

    gradient_of = jax.jit(jax.value_and_grad(loss))
    random = np.random.RandomState(index)
    images = random.rand(4000, 784).astype(np.float32)
    labels = np.eye(10, dtype=np.float32)[(images @ np.random.RandomState(1).randn(784, 10)).argmax(1)]
    weights = np.zeros(COUNT, np.float32)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for step in range(-WARM, steps):
            if step == 0:
                ready.wait()
                began = time.time()
            at = step % 39 * 100
            _, gradient = gradient_of(weights, images[at : at + 100], labels[at : at + 100])
            connection.sendall(np.asarray(gradient))
            if not read_into(connection, weights):
                raise EOFError("The server has gone.")
        rates.put(steps / (time.time() - began))


def measure(workers: int, steps: int, limit: float) -> tuple[float, float]:
    """Trains with so many workers. Returns the steps per second of all, and the server's processor time per step."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    processes = mp.get_context("spawn")
    cost, ready, rates = processes.Value("d", 0.0), processes.Barrier(workers), processes.Queue()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = processes.Process(target=serve, args=(listener, cost), daemon=True)
        server.start()
    crew = [
        processes.Process(target=train, args=(index, port, steps, ready, rates), daemon=True)
        for index in range(workers)
    ]
    try:
        for worker in crew:
            worker.start()
        made = [rates.get(timeout=limit) for _ in crew]
    finally:
        for process in (*crew, server):
            process.terminate()
            process.join()
    return sum(made), cost.value
