"""A train step over many small variables, in one process: milliseconds, once all is compiled.

LIBRARY=tensorflow /path/to/python benchmarks/many_variables.py 100 300     the same with TensorFlow
"""

from __future__ import annotations

import importlib
import os
import sys
import time

import numpy as np

LIBRARY = os.environ.get("LIBRARY", "penstock")
SECONDS = 15


def step_ms(count: int) -> float:
    """Milliseconds of a step of Adam over `count` variables of 32 numbers."""
    tf = importlib.import_module("penstock.v1" if LIBRARY == "penstock" else "tensorflow.compat.v1")
    with tf.Graph().as_default(), tf.Session() as session:
        variables = [tf.get_variable(f"v{i}", [32], initializer=tf.ones_initializer()) for i in range(count)]
        train = tf.train.AdamOptimizer(0.01).minimize(tf.add_n([tf.reduce_sum(v * v) for v in variables]))
        session.run(tf.global_variables_initializer())
        took = []
        end = time.time() + max(SECONDS, count / 20)
        while time.time() < end:
            began = time.perf_counter()
            session.run(train)
            took.append(time.perf_counter() - began)
    return 1e3 * float(np.median(took[-len(took) // 4 :]))


if __name__ == "__main__":
    for number in map(int, sys.argv[1:]):
        print(f"{number} variables: {step_ms(number):.2f} ms", flush=True)
