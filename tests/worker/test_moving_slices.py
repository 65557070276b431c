"""A slice whose bounds change with each step must not cause a compilation each time."""

import numpy as np

import penstock.v1 as tf
from penstock.segments.segment import Segment


def test_a_slice_that_moves_on_is_taken_out_of_the_compiled_code(monkeypatch):
    compiled = []
    jit = Segment._jit
    monkeypatch.setattr(Segment, "_jit", lambda self, static: compiled.append(self.name) or jit(self, static))
    text = np.arange(600, dtype=np.float32).reshape(3, 200)
    with tf.Graph().as_default(), tf.Session() as session:
        at = tf.placeholder(tf.int32, [])
        window = tf.strided_slice(tf.constant(text), [0, at * 5], [3, (at + 1) * 5])
        window.set_shape([3, 5])
        weights = tf.Variable(tf.ones([5, 4]))
        product = tf.matmul(window, weights)
        update = weights.assign_sub(1e-6 * tf.gradients(product, weights)[0])
        session.run(weights.initializer)
        for step in range(12):
            before = session.run(weights)
            value, _ = session.run([product, update], {at: step})
            np.testing.assert_allclose(value, text[:, step * 5 : step * 5 + 5] @ before, rtol=1e-5)
            if step == 5:
                seen = len(compiled)
    assert len(compiled) == seen
