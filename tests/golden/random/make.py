"""Writes the values of random ops in TensorFlow (2.21, CPU) to the .json files here.

A row is a program, which the tests run on penstock: `result` must be equal. The programs of graph.json and data.json
see TensorFlow's 1.x API as `tf`, in a graph of their own. Those of eager.json see the 2.x API.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

GRAPH = {
    "uniform": """
result = []
with tf.Session() as s:
  for kind in (tf.float16, tf.bfloat16, tf.float32, tf.float64):
    x = tf.cast(tf.random_uniform([5], dtype=kind, seed=5), tf.float64)
    result.append([s.run(x).tolist() for _ in range(3)])
""",
    "uniform_range": """
x = tf.random_uniform([2, 3], -2.0, 5.0, seed=-7)
with tf.Session() as s:
  result = [s.run(x).tolist() for _ in range(2)]
""",
    "uniform_many": """
x = tf.random_uniform([100, 777], seed=11)
with tf.Session() as s:
  found = s.run([x[::13, ::111], x[-1, -3:]])
  result = [found[0].tolist(), found[1].tolist(), s.run(x[0, :3]).tolist()]
""",
    "integers": """
result = []
with tf.Session() as s:
  for kind, low, high in ((tf.int32, 0, 10), (tf.int32, -5, 7), (tf.int64, 0, 10**12), (tf.int32, -2**31, 2**31 - 1), (tf.int64, -2**63, 2**63 - 1)):
    x = tf.random_uniform([7], low, high, dtype=kind, seed=3)
    result.append([s.run(x).tolist() for _ in range(2)])
""",
    "normal": """
result = []
with tf.Session() as s:
  for kind in (tf.float16, tf.bfloat16, tf.float32, tf.float64):
    x = tf.cast(tf.random_normal([7], dtype=kind, seed=5), tf.float64)
    result.append([s.run(x).tolist() for _ in range(3)])
""",
    "normal_scaled": """
x = tf.random_normal([2, 3], mean=3.0, stddev=[0.5, 1.0, 2.0], seed=2**40 + 1)
with tf.Session() as s:
  result = [s.run(x).tolist() for _ in range(2)]
""",
    "truncated_normal": """
result = []
with tf.Session() as s:
  for kind in (tf.float16, tf.bfloat16, tf.float32, tf.float64):
    x = tf.cast(tf.truncated_normal([40], dtype=kind, seed=5), tf.float64)
    result.append([s.run(x).tolist() for _ in range(2)])
""",
    "truncated_normal_many": """
x = tf.truncated_normal([300, 101], seed=9)
with tf.Session() as s:
  found = s.run(x)
  result = [found[::29, ::17].tolist(), found[-1, -5:].tolist(), s.run(x)[0, :5].tolist()]
""",
    "sizes_change": """
n = tf.placeholder(tf.int32, [1])
x, y = tf.random_uniform(n, seed=4), tf.random_normal(n, seed=4)
with tf.Session() as s:
  result = [[a.tolist() for a in s.run([x, y], {n: [k]})] for k in (3, 5, 1, 0, 2, 6, 3)]
""",
    "sizes_of_batches": """
v = tf.placeholder(tf.float32, [None, 2])
x = v + tf.random_uniform(tf.shape(v), seed=4)
with tf.Session() as s:
  result = [s.run(x, {v: np.zeros([k, 2])}).tolist() for k in (3, 5, 1, 2, 6, 3, 3, 3, 4)]
""",
    "graph_seed": """
tf.set_random_seed(7)
a = tf.random_uniform([2]); b = tf.random_normal([2]); c = tf.random_uniform([2], seed=1); d = tf.random_uniform([2])
with tf.Session() as s:
  result = [[v.tolist() for v in s.run([a, b, c, d])] for _ in range(2)]
""",
    "graph_seed_attrs": """
tf.set_random_seed(7)
nodes = [tf.random_shuffle([1, 2]).op, tf.random_shuffle(tf.zeros([3]) + 1).op, tf.random_shuffle([1, 2], seed=3).op, tf.random_shuffle([1, 2]).op]
tf.set_random_seed(0)
nodes += [tf.random_shuffle([1, 2], seed=0).op, tf.random_shuffle([1, 2], seed=2**31 - 1).op, tf.random_shuffle([1, 2]).op]
tf.set_random_seed(2**31 + 5)
nodes += [tf.random_shuffle([1, 2], seed=2**33).op, tf.random_shuffle([1, 2], seed=-4).op]
result = [[n.get_attr("seed"), n.get_attr("seed2")] for n in nodes]
""",
    "two_sessions": """
x = tf.random_uniform([2], seed=1)
result = []
for _ in range(2):
  with tf.Session() as s:
    result.append([s.run(x).tolist() for _ in range(2)])
""",
    "shuffle": """
x, y, z = tf.random_shuffle(tf.range(10), seed=1), tf.random_shuffle([[1, 2], [3, 4], [5, 6]], seed=2), tf.random_shuffle(["a", "b", "c", "d"], seed=3)
with tf.Session() as s:
  result = [[s.run(x).tolist(), s.run(y).tolist(), [t.decode() for t in s.run(z)]] for _ in range(3)]
""",
    "shuffle_short": """
x, y = tf.random_shuffle([7], seed=1), tf.random_shuffle(3, seed=1)
with tf.Session() as s:
  result = [s.run(x).tolist(), int(s.run(y))]
""",
    "multinomial": """
logits = tf.log([[0.1, 0.2, 0.7], [0.5, 0.0, 0.5]])
x = tf.random.categorical(logits, 7, seed=5)
y = tf.multinomial(tf.constant([[1.0, 2.0, 3.0, 4.0]], tf.float64), 5, seed=6, output_dtype=tf.int32)
with tf.Session() as s:
  result = [[s.run(x).tolist(), s.run(y).tolist()] for _ in range(3)]
""",
    "while_loop": """
def more(i, a):
  return i + 1, a + tf.random_uniform([2], seed=9) * 10.0 ** tf.cast(i, tf.float32)
x = tf.while_loop(lambda i, a: i < 3, more, [0, tf.zeros([2])], parallel_iterations=1)[1]
with tf.Session() as s:
  result = [s.run(x).tolist() for _ in range(6)]
""",
    "cond": """
p = tf.placeholder(tf.bool, [])
x = tf.cond(p, lambda: tf.random_uniform([2], seed=9), lambda: tf.random_normal([2], seed=8))
with tf.Session() as s:
  result = [s.run(x, {p: taken}).tolist() for taken in (True, False, True, True, False, False, True)]
""",
    "gamma": """
x = tf.random_gamma([4], [0.3, 1.0, 2.5], seed=5)
y = tf.random_gamma([3], [[0.7], [30.0]], beta=[2.0, 0.5], dtype=tf.float64, seed=5)
with tf.Session() as s:
  result = [[s.run(x).tolist(), s.run(y).tolist()] for _ in range(2)]
""",
    "poisson": """
x = tf.random_poisson([0.5, 3.0, 40.0], [5], seed=5)
y = tf.random_poisson([7.5], [4], dtype=tf.int32, seed=6)
with tf.Session() as s:
  result = [[s.run(x).tolist(), s.run(y).tolist()] for _ in range(2)]
""",
    "generator": """
g = tf.random.Generator.from_seed(5)
x, y, z = g.uniform([3]), g.truncated_normal([2]), g.binomial([4], 10.0, 0.3)
with tf.Session() as s:
  s.run(g.state.initializer)
  result = [[s.run(v).tolist() for v in (x, y, z, g.state)] for _ in range(3)] + [s.run(g.make_seeds(2)).tolist(), int(s.run(g.key))]
""",
    "random_crop": """
x = tf.random_crop(tf.reshape(tf.range(60), [3, 4, 5]), [2, 2, 2], seed=3)
with tf.Session() as s:
  result = [s.run(x).tolist() for _ in range(2)]
""",
    "dropout": """
x = tf.nn.dropout(tf.ones([12]), rate=0.4, seed=3)
with tf.Session() as s:
  result = [s.run(x).tolist() for _ in range(2)]
""",
    "initializers": """
init = [tf.truncated_normal_initializer(stddev=0.1, seed=1), tf.glorot_uniform_initializer(seed=2), tf.random_normal_initializer(seed=3), tf.variance_scaling_initializer(seed=4), tf.orthogonal_initializer(seed=5)]
v = [tf.get_variable("v%d" % i, [3, 2], initializer=f) for i, f in enumerate(init)]
with tf.Session() as s:
  s.run(tf.global_variables_initializer())
  result = [a.tolist() for a in s.run(v)]
""",
    "stateless": """
seed = [3, 5]
with tf.Session() as s:
  result = [s.run(x).tolist() for x in (
    tf.random.stateless_uniform([3], seed), tf.random.stateless_normal([3], seed), tf.random.stateless_truncated_normal([9], seed),
    tf.random.stateless_uniform([4], seed, 0, 100, tf.int32), tf.random.stateless_uniform([2], seed, None, None, tf.int64),
    tf.random.stateless_normal([3], seed, dtype=tf.float64), tf.random.stateless_uniform([3], seed, dtype=tf.float64))]
""",
    "stateless_categorical": """
with tf.Session() as s:
  result = s.run(tf.random.stateless_categorical(tf.log([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]]), 6, [1, 2])).tolist()
""",
    "stateless_gamma": """
with tf.Session() as s:
  result = s.run(tf.random.stateless_gamma([4, 3], [1, 2], [0.3, 1.0, 2.5])).tolist()
""",
    "stateless_poisson": """
with tf.Session() as s:
  result = s.run(tf.random.stateless_poisson([5, 3], [1, 2], [0.5, 3.0, 40.0])).tolist()
""",
    "stateless_binomial": """
with tf.Session() as s:
  result = s.run(tf.random.stateless_binomial([6, 3], [1, 2], [10.0, 20.0, 100.0], [0.3, 0.8, 0.45])).tolist()
""",
}

_LISTING = """
def listed(dataset, rounds=1):
  iterator = tf.data.make_initializable_iterator(dataset)
  element, found = iterator.get_next(), []
  with tf.Session() as s:
    for _ in range(rounds):
      s.run(iterator.initializer)
      found.append([])
      try:
        while len(found[-1]) < 40:
          found[-1].append(s.run(element).tolist())
      except tf.errors.OutOfRangeError:
        pass
  return found
numbers = tf.data.Dataset.range(10)
"""

DATA = {
    "shuffle": """
result = [listed(numbers.shuffle(n, seed=s), 2) for n in (10, 3, 1, 100) for s in (1, 4)]
""",
    "shuffle_fixed": """
result = [listed(numbers.shuffle(n, seed=1, reshuffle_each_iteration=False), 2) for n in (10, 3)]
""",
    "shuffle_repeat": """
result = [listed(numbers.shuffle(n, seed=2, reshuffle_each_iteration=again).repeat(3)) for n in (10, 4) for again in (True, False)]
""",
    "repeat_shuffle": """
result = listed(numbers.repeat(2).shuffle(7, seed=3))
""",
    "shuffle_batch": """
slices = tf.data.Dataset.from_tensor_slices(np.arange(20))
result = [listed(slices.shuffle(n, seed=5).batch(3)) for n in (20, 6)] + [listed(slices.shuffle(8, seed=5).repeat(2).batch(5))]
""",
    "shuffle_graph_seed": """
tf.set_random_seed(7)
result = [listed(numbers.shuffle(10)), listed(numbers.shuffle(10)), listed(numbers.shuffle(10, seed=1))]
""",
    "shuffle_twice": """
result = listed(numbers.shuffle(5, seed=1).shuffle(5, seed=2))
""",
    "random": """
result = [listed(tf.data.experimental.RandomDataset(seed=4).take(9), 2), listed(tf.data.experimental.RandomDataset(seed=4).take(3).repeat(2))]
""",
    "map": """
drawn = numbers.map(lambda x: tf.random_uniform([], seed=1))
result = [listed(drawn, 2), listed(drawn.repeat(2))]
""",
    "sample_from_datasets": """
a, b, c = tf.data.Dataset.range(0, 6), tf.data.Dataset.range(10, 16), tf.data.Dataset.range(20, 26)
sample = tf.data.experimental.sample_from_datasets
result = [listed(sample([a, b, c], seed=1)), listed(sample([a, b, c], [0.1, 0.0, 0.9], seed=2)), listed(sample([a, b], [0.5, 0.5], seed=3)), listed(sample([a, b], [1.0, 0.0], seed=3))]
""",
}

_EAGERLY = """
list_of = lambda x: x.numpy().tolist()
"""

# These begin in eager execution.
EAGER = {
    "calls": """
tf.random.set_seed(42)
result = [list_of(x) for x in (tf.random.uniform([2]), tf.random.uniform([2]), tf.random.uniform([2], seed=1), tf.random.normal([2]), tf.random.shuffle(tf.range(5)))]
""",
    "other_ops": """
tf.random.set_seed(7)
result = [list_of(x) for x in (tf.random.truncated_normal([3]), tf.random.gamma([2], [0.5]), tf.random.poisson(shape=[2], lam=[3.5]), tf.random.categorical([[0.0, 1.0, 2.0]], 5), tf.random.uniform([3], maxval=9, dtype=tf.int32))]
""",
    "seed_pairs": """
result = []
for seed in (0, 42, 2**31 - 1, 2**40 + 3, -1):
  tf.random.set_seed(seed)
  result.append([list(get_seed(s)) for s in (None, None, 5, 0, 2**31 - 1, None, -5, 2**40, None)])
""",
    "one_op_seed": """
tf.random.set_seed(0)
result = [list_of(tf.random.uniform([n], seed=1)) for n in (2, 2, 3, 2)]
tf.random.set_seed(0)
result += [list_of(tf.random.uniform([2], seed=1)), list_of(tf.random.uniform([2], seed=1, dtype=tf.float64)), list_of(tf.random.uniform([2], seed=1))]
tf.random.set_seed(0)
result += [list_of(tf.random.uniform(tf.constant([2], tf.int64), seed=1)), list_of(tf.random.uniform([2], seed=1)), list_of(tf.random.uniform([2], 0, 2.0, seed=1))]
with tf.device("/cpu:0"):
  result.append(list_of(tf.random.uniform([2], seed=1)))
""",
    "functions": """
def drawn():
  return tf.random.uniform([2], seed=1), tf.random.uniform([2], seed=1), tf.random.uniform([2]), tf.random.normal([3])
f = tf.function(drawn)
g = tf.function(lambda: f())
tf.random.set_seed(0)
result = [[list_of(x) for x in call()] for call in (f, f, g, f, g)] + [list_of(tf.random.uniform([2], seed=1))]
tf.random.set_seed(0)
result += [[list_of(x) for x in call()] for call in (f, g)]
tf.random.set_seed(3)
result += [[list_of(x) for x in call()] for call in (f, g, tf.function(drawn))]
""",
    "datasets": """
D = tf.data.Dataset
taken = lambda dataset: [x.numpy().tolist() for x in dataset]
tf.random.set_seed(7)
shuffled = D.range(6).shuffle(6)
result = [taken(shuffled), taken(shuffled), taken(D.range(6).shuffle(6, seed=1).repeat(2)), taken(D.random(seed=4).take(3))]
drawn = D.range(4).map(lambda x: tf.random.uniform([]))
result += [taken(drawn), taken(drawn), taken(D.range(4).map(lambda x: tf.random.uniform([], seed=3)).repeat(2))]
weights = D.from_tensor_slices([[0.9, 0.1]] * 4 + [[0.2, 0.8]] * 8)
for given in (None, [0.3, 0.7], np.array([0.3, 0.7]), tf.constant([0.3, 0.7]), weights):
  result.append(taken(D.sample_from_datasets([D.range(0, 8), D.range(10, 18)], given, seed=3)))
""",
    "rejection_resample": """
tf.random.set_seed(7)
labels = np.random.RandomState(0).randint(0, 2, 100).astype(np.int32)
elements = tf.data.Dataset.zip((tf.data.Dataset.range(100), tf.data.Dataset.from_tensor_slices(labels)))
result = []
for initial in ([0.5, 0.5], None):
  sampled = elements.rejection_resample(lambda number, label: label, [0.8, 0.2], initial, seed=1)
  result += [[[int(label), int(element[0])] for label, element in sampled] for _ in range(2)]
""",
    "generator": """
g = tf.random.Generator.from_seed(5, alg="philox")
def state():
  return g.state.numpy().tolist()
result = [list_of(g.truncated_normal([9])), state(), list_of(g.uniform([2, 2], -3.0, 3.0)), list_of(g.normal([3], 2.0, 0.5, tf.float64)), state()]
result += [list_of(g.binomial([6], 10.0, 0.3)), state(), list_of(g.binomial([6, 3], [10.0, 20.0, 100.0], [0.3, 0.8, 0.45])), state(), list_of(g.binomial([2, 3, 1, 2], [[10.0, 50.0]], 0.5)), state()]
result += [list_of(g.uniform([2], None, None, tf.int64)), list_of(g.uniform([], 5, 9, tf.int64)), list_of(g.skip(3)), state(), list_of(g.make_seeds(3)), list_of(g.key)]
result += [[list_of(k.normal([2])) for k in g.split(2)], state(), list_of(tf.random.Generator(copy_from=g).uniform([2]))]
g.reset([2**63, -1, 2**64 - 1])
result += [state(), list_of(g.uniform([2])), state()]
g.reset_from_key_counter(7, [2**64 - 1, 3])
result += [list_of(g.uniform([5])), state(), list_of(tf.random.Generator.from_key_counter(7, [1, 3], "philox").uniform([2]))]
""",
    "states": """
result = [list_of(tf.random.create_rng_state(seed, alg)) for seed, alg in (([12, 34], "philox"), (-3, "philox"), (2**64 + 5, "threefry"), ([1, 2, 3, 4], 1), (2**63, tf.random.Algorithm.AUTO_SELECT), (tf.constant([5, 6]), "philox"))]
""",
    "stateless_tools": """
result = [list_of(x) for x in (tf.random.split([1, 2], 3), tf.random.split(tf.constant([1, 2], tf.int64)), tf.random.fold_in([1, 2], 7), tf.random.experimental.stateless_shuffle(tf.range(9), [1, 2]), tf.random.experimental.stateless_shuffle([[1, 2], [3, 4], [5, 6]], [5, 2], alg="philox"), tf.random.stateless_normal([3], [1, 2], alg="philox"))]
""",
    "raw_ops": """
v = tf.Variable([7, 0, 9], dtype=tf.int64)
r = raw_ops
result = [list_of(r.StatefulUniform(resource=v.handle, algorithm=1, shape=[3])), list_of(r.StatefulStandardNormalV2(resource=v.handle, algorithm=1, shape=[3])), list_of(r.StatefulTruncatedNormal(resource=v.handle, algorithm=1, shape=[3])), list_of(r.StatefulUniformFullInt(resource=v.handle, algorithm=1, shape=[3], dtype=tf.int64)), list_of(r.StatefulUniformInt(resource=v.handle, algorithm=1, shape=[3], minval=tf.constant(0, tf.int64), maxval=tf.constant(10, tf.int64))), list_of(v)]
r.RngSkip(resource=v.handle, algorithm=1, delta=3)
result += [list_of(v), list_of(r.RngReadAndSkip(resource=v.handle, alg=1, delta=2)), list_of(v)]
""",
    "generator_in_function": """
g = tf.random.Generator.from_seed(11)
f = tf.function(lambda: (g.uniform([2]), g.normal([3])))
result = [[list_of(x) for x in f()] for _ in range(3)] + [list_of(g.uniform([2])), g.state.numpy().tolist()]
""",
    "traces": """
f = tf.function(lambda x: tf.random.uniform([2]) + 0 * x)
tf.random.set_seed(5)
result = [list_of(f(tf.constant(x))) for x in (1.0, [1.0, 1.0], 1.0, [2.0, 2.0])]
""",
    "branches": """
two = lambda: (tf.random.uniform([2]), tf.random.uniform([2]))
f = tf.function(lambda p: tf.cond(p, two, lambda: (tf.random.normal([2]), tf.random.uniform([2]))))
tf.random.set_seed(0)
result = [[list_of(x) for x in f(tf.constant(p))] for p in (True, False, True, True, False, False, True)]
""",
    "loops": """
body = lambda i, a: (i + 1, tf.tensor_scatter_nd_update(a, [[i]], [tf.random.uniform([2])]))
f = tf.function(lambda n: tf.while_loop(lambda i, a: i < n, body, [0, tf.zeros([4, 2])], parallel_iterations=1)[1])
tf.random.set_seed(0)
result = [list_of(f(tf.constant(n))) for n in (3, 4, 1, 4)]
""",
}


def run(program: str, tf: Any) -> Any:
    """Runs a program and returns its `result`."""
    import numpy as np

    names = {
        "tf": tf,
        "np": np,
        "get_seed": getattr(tf, "get_seed", None) or tf.compat.v1.get_seed,
        "raw_ops": tf.raw_ops,
    }
    exec(program, names)
    return names["result"]


def write(name: str, programs: dict[str, str], results: list[Any]) -> None:
    """Writes the rows of a file."""
    rows = [{"id": i, "program": p, "result": r} for (i, p), r in zip(programs.items(), results, strict=True)]
    text = "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"
    pathlib.Path(__file__).with_name(name).write_text(text)


def main() -> None:
    import tensorflow.compat.v1 as tf

    found = []
    for program in GRAPH.values():
        with tf.Graph().as_default():
            found.append(run(program, tf))
    write("graph.json", GRAPH, found)
    found = []
    for program in DATA.values():
        with tf.Graph().as_default():
            found.append(run(_LISTING + program, tf))
    import tensorflow as tf2

    found_eager = [run(_EAGERLY + program, tf2) for program in EAGER.values()]
    write("eager.json", {name: _EAGERLY + program for name, program in EAGER.items()}, found_eager)
    write("data.json", {name: _LISTING + program for name, program in DATA.items()}, found)


if __name__ == "__main__":
    main()
