"""Readers and writers use one variable at once: none fails, and no value is torn."""

import threading
import time

import numpy as np
import pytest

import penstock.v1 as tf


@pytest.mark.parametrize("kind", ["fetched", "read in a segment", "written from another variable"])
def test_readers_race_with_updates(kind):
    with tf.Graph().as_default(), tf.Session() as sess:
        v = tf.Variable(np.zeros(1000, np.float32))
        w = tf.Variable(np.zeros(1000, np.float32))
        update = tf.assign_add(v, tf.ones([1000])).op
        fetch = {
            "fetched": v,
            "read in a segment": v.read_value() * 1.0,
            "written from another variable": tf.assign(w, v * 1.0),
        }[kind]
        sess.run([v.initializer, w.initializer])
        stop = threading.Event()
        errors, seen = [], []

        def guarded(work):
            try:
                while not stop.is_set():
                    work()
            except Exception as error:  # shown below
                errors.append(error)
                stop.set()

        def read():
            value = sess.run(fetch)
            assert (value == value[0]).all(), "torn"
            seen.append(value[0])

        threads = [threading.Thread(target=guarded, args=(work,)) for work in (lambda: sess.run(update), read, read)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 60
        while len(seen) < 100 and not errors and time.monotonic() < deadline:
            stop.wait(0.01)
        stop.set()
        for thread in threads:
            thread.join(60)
        assert not errors
        assert len(seen) >= 100
