"""Fits a line to points that are fed one by one through placeholders."""

import numpy as np
import tensorflow as tf

train_x = np.linspace(-1, 1, 40).astype(np.float32)
train_y = 2 * train_x + 0.5 + 0.05 * np.random.RandomState(0).randn(40).astype(np.float32)

X = tf.placeholder("float")
Y = tf.placeholder("float")
W = tf.Variable(np.float32(-0.3), name="weight")
b = tf.Variable(0.0, name="bias")
pred = tf.add(tf.multiply(X, W), b)
cost = tf.reduce_sum(tf.pow(pred - Y, 2)) / (2 * len(train_x))
optimizer = tf.train.GradientDescentOptimizer(0.5).minimize(cost)
init = tf.initialize_all_variables()

with tf.Session() as sess:
    sess.run(init)
    print("loss", sess.run(cost, feed_dict={X: train_x, Y: train_y}))
    for epoch in range(30):
        for x, y in zip(train_x, train_y):
            sess.run(optimizer, feed_dict={X: x, Y: y})
    print("loss", cost.eval({X: train_x, Y: train_y}))
    print("W=", W.eval(), "b=", sess.run(b))
