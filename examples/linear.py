"""A first program: it finds the line around which points were scattered.

python examples/linear.py
"""

import numpy as np

import penstock.v1 as tf

xs = np.random.RandomState(0).uniform(-1, 1, 100).astype(np.float32)
ys = 3 * xs + 2 + np.random.RandomState(1).normal(0, 0.1, 100).astype(np.float32)

# The graph describes the computation. Nothing runs yet.
x = tf.placeholder(tf.float32, [None])
y = tf.placeholder(tf.float32, [None])
slope = tf.Variable(0.0)
offset = tf.Variable(0.0)
loss = tf.reduce_mean(tf.square(slope * x + offset - y))
train = tf.train.GradientDescentOptimizer(0.3).minimize(loss)

# The session runs what is asked for, with values for the placeholders.
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for step in range(101):
        _, error = session.run([train, loss], feed_dict={x: xs, y: ys})
        if step % 20 == 0:
            print(f"step {step:3d}  loss {error:.4f}")
    a, b = session.run([slope, offset])
    print(f"y = {a:.2f} x + {b:.2f}")
