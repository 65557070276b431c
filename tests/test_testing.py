"""tf.test: the TestCase, with tests that must pass and tests that must fail."""

import unittest

import numpy as np
import pytest

import penstock.v1 as tf


class Cases(tf.test.TestCase):
    """Cases that run below, one by one; pytest does not collect them."""

    __test__ = False

    def test_compares_tensors_and_arrays(self):
        with self.test_session():
            self.assertAllEqual(tf.add([1], 2), [3])
            self.assertAllEqual(tf.constant(["a", "b"]), ["a", "b"])
            self.assertAllClose({"x": tf.constant(1.0)}, {"x": 1.0 + 1e-8})
            self.assertAllClose([np.ones(2), np.ones((2, 2))], [np.ones(2), np.ones((2, 2))])

    def test_keeps_the_session_within_a_test(self):
        v = tf.Variable(1)
        with self.cached_session() as session:
            session.run(v.initializer)
        with self.cached_session():
            self.assertEqual(self.evaluate(v.assign_add(1)), 2)

    def test_each_test_has_a_graph_of_its_own(self):
        assert not tf.get_default_graph().get_operations()
        tf.constant(1)

    def test_errors(self):
        with self.session() as session, self.assertRaisesOpError("(?i)division by zero"):
            session.run(tf.floordiv(tf.placeholder_with_default([1], [1]), tf.placeholder_with_default([0], [1])))

    def test_shapes_and_types(self):
        self.assertShapeEqual(np.zeros((2, 3)), tf.zeros([2, 3]))
        self.assertDTypeEqual(np.zeros(1, np.float32), tf.float32)
        self.assertProtoEquals('name: "x"', tf.NodeDef(name="x"))
        self.assertNear(1.0, 1.1, 0.2)
        self.assertArrayNear([1.0], [1.1], 0.2)

    def test_gradients(self):
        with self.session():
            x = tf.constant([1.0, 2.0])
            assert tf.test.compute_gradient_error(x, [2], x * x, [2], np.array([1.0, 2.0])) < 1e-2
            exact, near = tf.test.compute_gradient([x], [[2]], tf.reduce_sum(x**3), [], [np.array([1.0, 2.0])])[0]
            self.assertAllClose(exact, [[3.0], [12.0]])
            self.assertAllClose(near, exact, rtol=1e-2)

    def fail_values(self):
        with self.test_session():
            self.assertAllClose(tf.constant([1.0]), [1.1])

    def fail_shapes(self):
        self.assertAllEqual(np.zeros((1, 2)), np.zeros(2))

    def fail_no_error(self):
        with self.assertRaisesOpError("anything"):
            pass


@pytest.mark.parametrize("name", [name for name in vars(Cases) if name.startswith(("test_", "fail_"))])
def test_case(name):
    result = unittest.TestResult()
    Cases(name).run(result)
    assert result.testsRun == 1 and not result.errors, result.errors
    assert bool(result.failures) == name.startswith("fail_"), result.failures


def test_directories_are_removed():
    case = Cases("test_errors")
    case.setUp()
    folder = case.get_temp_dir()
    assert folder == case.get_temp_dir() and tf.gfile.Exists(folder)
    case.tearDown()
    case.doCleanups()
    assert not tf.gfile.Exists(folder)


def test_graphs_are_compared():
    def graph(*values):
        with tf.Graph().as_default() as made:
            for value in values:
                tf.constant(value)
        return made.as_graph_def()

    tf.test.assert_equal_graph_def(graph(1), graph(1))
    for other, says in ((graph(2), "'Const' differs"), (graph(1, 2), r"missing \['Const_1'\]")):
        with pytest.raises(AssertionError, match=says):
            tf.test.assert_equal_graph_def(graph(1), other)


def test_devices():
    assert tf.test.is_gpu_available() == bool(tf.test.gpu_device_name())
