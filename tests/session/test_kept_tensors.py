"""Tensors that stay in a session: their handles, and when they are freed."""

from __future__ import annotations

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.ops.state.session_tensors import SessionTensors


def _kept(worker) -> list[SessionTensors]:
    resources = [r for device in worker.devices for _, r in device.resources.items()]
    return [r for r in resources if isinstance(r, SessionTensors)]


def test_a_tensor_without_a_handle_is_freed():
    with tf.Graph().as_default(), tf.Session() as session:
        make = tf.get_session_handle(tf.constant([1.0, 2.0]))
        kept = [session.run(make) for _ in range(3)]
        (tensors,) = _kept(session._master.tasks.default.worker)
        for _ in range(40):
            session.run(make)
        assert len(tensors._values) < 20
        assert [handle.eval().tolist() for handle in kept] == [[1.0, 2.0]] * 3


def test_what_is_kept_does_not_change_with_what_was_fed():
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [2])
        value = np.array([1.0, 2.0], np.float32)
        handle = session.run(tf.get_session_handle(x), {x: value})
        value[:] = 0.0
        assert handle.eval().tolist() == [1.0, 2.0]


def test_sessions_of_a_server_have_tensors_of_their_own():
    with tf.Graph().as_default(), tf.train.Server.create_local_server() as server:
        with tf.Session(server.target) as session, tf.Session(server.target) as other:
            handle = session.run(tf.get_session_handle(tf.constant(3.0)))
            holder, value = tf.get_session_tensor(handle.handle, tf.float32)
            assert session.run(value, {holder: handle.handle}) == 3.0
            with pytest.raises(tf.errors.InvalidArgumentError, match="not in the session store"):
                other.run(value, {holder: handle.handle})
            worker = session._master.tasks.default.worker
            assert len(_kept(worker)) == 2
        assert _kept(worker) == []


def test_other_things_of_a_session_are_kept_beside_its_tensors():
    with tf.Graph().as_default(), tf.train.Server.create_local_server() as server:
        task = tf.raw_ops.CurrentTask()
        with tf.Session(server.target) as session:
            handle = session.run(tf.get_session_handle(tf.constant(3.0)))
            assert session.run(task) == 0
            assert handle.eval() == 3.0
