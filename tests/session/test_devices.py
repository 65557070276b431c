"""Devices of a local session: several CPUs, placement, colocation, soft placement."""

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.master.master import Master
from penstock.worker.devices import local_devices
from penstock.worker.worker import Worker


def test_two_cpus_own_their_variables(capfd):
    config = tf.ConfigProto(device_count={"CPU": 2}, log_device_placement=True)
    with tf.Graph().as_default(), tf.Session(config=config) as sess:
        assert [d.name.rpartition("/")[2] for d in sess.list_devices()][:2] == ["device:CPU:0", "device:CPU:1"]
        with tf.device("/cpu:1"):
            v = tf.Variable([1.0, 2.0], name="v")
        with tf.device("/cpu:0"):
            y = v * 2.0
        with tf.device("/cpu:1"):
            z = y + v
        sess.run(v.initializer)
        np.testing.assert_array_equal(sess.run(z), [3.0, 6.0])
        owner = sess._master.tasks.default.devices[1]
        assert [key for key, _ in owner.resources.items()] == [("", "v")]
    assert "v: (VariableV2): /job:localhost/replica:0/task:0/device:CPU:1" in capfd.readouterr().out


def test_missing_device_is_an_error_unless_soft():
    with tf.Graph().as_default():
        with tf.device("/gpu:7"):
            c = tf.constant(1.0) + tf.placeholder_with_default(1.0, [])
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"GPU:7.*available devices"):
            tf.Session().run(c)
        soft = tf.Session(config=tf.ConfigProto(allow_soft_placement=True))
        assert soft.run(c) == 2.0


def test_colocation_conflict_is_refused():
    config = tf.ConfigProto(device_count={"CPU": 2})
    with tf.Graph().as_default(), tf.Session(config=config) as sess:
        with tf.device("/cpu:1"):
            v = tf.Variable(1.0, name="v")
        sess.run(v.initializer)
        with tf.device("/cpu:0"):
            update = tf.assign_add(v, 1.0)  # follows the variable, not the scope
        assert update.op.device == "/device:CPU:1"
        assert sess.run(update) == 2.0
        update.op._set_device("/cpu:0")
        update.op.graph.touch()
        with pytest.raises(tf.errors.InvalidArgumentError, match="colocate"):
            sess.run(update)


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_control_flow_over_two_devices(use_resource):
    """A conditional, a loop and their gradients use variables of two devices of one task, which stay there."""
    config = tf.ConfigProto(device_count={"CPU": 2, "GPU": 0})
    with tf.Graph().as_default(), tf.Session(config=config) as sess, tf.variable_scope("", use_resource=use_resource):
        with tf.device("/cpu:0"):
            v = tf.get_variable("v", initializer=[1.0, 2.0])
        with tf.device("/cpu:1"):
            w = tf.get_variable("w", initializer=[3.0, 5.0])
        grow = tf.placeholder(tf.bool, [])
        fed = tf.placeholder_with_default([10.0, 10.0], [2])

        def grown():
            with tf.control_dependencies([tf.assign_add(v, w + fed)]):
                return tf.assign_add(w, tf.cond(grow, lambda: v.read_value() * w, lambda: v + 1.0))

        chosen = tf.cond(grow, grown, lambda: v * w)
        _, power = tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, x * v.read_value() * w), [0, fed])
        slopes = tf.gradients(power, [v, w]) + tf.gradients(tf.cond(grow, lambda: v * w, lambda: w), [v, w])
        sess.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(sess.run(chosen, {grow: False}), [3.0, 10.0])
        np.testing.assert_array_equal(sess.run(power), [90.0, 1000.0])
        found = sess.run(slopes, {grow: True})
        np.testing.assert_array_equal(found, [[180.0, 1000.0], [60.0, 400.0], [3.0, 5.0], [1.0, 2.0]])
        np.testing.assert_array_equal(sess.run(chosen, {grow: True}), [3.0 + 14.0 * 3.0, 5.0 + 17.0 * 5.0])
        np.testing.assert_array_equal(sess.run(v), [14.0, 17.0])
        np.testing.assert_array_equal(sess.run(w), [45.0, 90.0])
        owners = sess._master.tasks.default.devices
        assert [[key for key, _ in owner.resources.items()] for owner in owners] == [[("", "v")], [("", "w")]]


def test_one_step_over_two_tasks_in_one_process():
    """Master, partitions, Send and Recv: the path of a cluster, with peers in this process."""
    with tf.Graph().as_default() as graph:
        with tf.device("/job:ps/task:0"):
            w = tf.Variable([1.0, 2.0], name="w")
        with tf.device("/job:worker/task:0"):
            x = tf.placeholder(tf.float32, [2])
            grad = w * x
        with tf.device("/job:ps/task:0"), tf.control_dependencies([grad]):
            update = tf.assign_sub(w, grad)
        workers = [Worker(local_devices(job)) for job in ("ps", "worker")]
        master = Master(workers)

        def run(fetches=(), targets=(), feeds=(), fed=()):
            signature = master.signature(tuple(feeds), tuple(fetches), tuple(targets), graph.mutations)
            return [np.asarray(v) for v in master.run(signature, list(fed))[0]]

        run(targets=[w.initializer])
        assert len(master.signature((x,), (grad,), (update.op,), graph.mutations).other_parts) == 1
        (out,) = run([grad], [update.op], [x], [np.array([10.0, 10.0], np.float32)])
        np.testing.assert_array_equal(out, [10.0, 20.0])
        (now,) = run([w._ref()])
        np.testing.assert_array_equal(now, [-9.0, -18.0])
        with pytest.raises(tf.errors.InvalidArgumentError):
            run([tf.reshape(tf.placeholder_with_default(grad, None), [3])], [], [x], [np.ones(2, np.float32)])


def test_a_config_may_carry_the_cluster_of_its_server():
    with tf.Graph().as_default(), tf.train.Server.create_local_server() as server:
        config = tf.ConfigProto(cluster_def=server.cluster.as_cluster_def())
        with tf.device("/job:localhost/task:0"):
            doubled = tf.constant(2.0) * 2.0
        with tf.Session(server.target, config=config) as session:
            assert session.run(doubled) == 4.0
            assert session.list_devices()[0].name.startswith("/job:localhost/")
        with tf.Session(config=config) as session:
            assert session.run(doubled) == 4.0
