"""Session.run: valid feeds and fetches, results, and that a signature is prepared once."""

import collections
import threading

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.worker.worker import Worker


@pytest.fixture
def sess():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


Pair = collections.namedtuple("Pair", ["first", "second"])


def test_fetch_structures(sess):
    a, b = tf.constant(1.0), tf.constant([2, 3])
    op = tf.no_op()
    out = sess.run({"list": [a, (b, op)], "pair": Pair(a, b), "name": "Const:0", "op": op})
    assert out["list"][0] == 1.0 and out["list"][1][1] is None
    assert isinstance(out["list"][1], tuple) and isinstance(out["pair"], Pair)
    np.testing.assert_array_equal(out["pair"].second, [2, 3])
    assert out["name"] == 1.0 and out["op"] is None
    assert sess.run([]) == []
    assert isinstance(sess.run(a), np.float32)


def test_fetch_sparse_and_slices(sess):
    sparse = tf.SparseTensor(indices=[[0, 1]], values=[5.0], dense_shape=[2, 3])
    value = sess.run(sparse)
    assert type(value).__name__ == "SparseTensorValue"
    np.testing.assert_array_equal(value.dense_shape, [2, 3])
    slices = tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([3]))
    assert sess.run(slices).dense_shape is None


def test_any_tensor_can_be_fed(sess):
    x = tf.placeholder(tf.float32, [])
    middle = x * 2.0
    out = middle + 1.0
    assert sess.run(out, {middle: 10.0}) == 11.0
    assert sess.run(out, {"Placeholder:0": 1.0}) == 3.0
    assert sess.run([x, out], {x: 4.0}) == [4.0, 9.0]
    v = tf.Variable(3.0)
    assert sess.run(v + 1.0, {v: 5.0}) == 6.0


@pytest.mark.parametrize(
    ("feed", "error"),
    [
        (np.zeros([3, 3]), ValueError),
        (np.zeros([2, 2, 1]), ValueError),
        ("text", ValueError),
        ([[1, 2], [3]], ValueError),
    ],
)
def test_wrong_feeds_leave_the_session_usable(sess, feed, error):
    x = tf.placeholder(tf.float32, [None, 2])
    y = x + 1.0
    with pytest.raises(error, match="Placeholder"):
        sess.run(y, {x: feed})
    np.testing.assert_array_equal(sess.run(y, {x: [[1, 2]]}), [[2, 3]])


def test_errors_name_the_operation(sess):
    x = tf.placeholder(tf.float32, name="needed")
    with pytest.raises(tf.errors.InvalidArgumentError, match="needed") as caught:
        sess.run(x + 1.0)
    assert caught.value.op.name == "needed"
    v = tf.Variable(1.0, name="v")
    with pytest.raises(tf.errors.FailedPreconditionError, match="v"):
        sess.run(v)
    with pytest.raises(tf.errors.InvalidArgumentError, match="sum_it") as caught:
        sess.run(tf.add(x, [1.0, 2.0], name="sum_it"), {x: [1.0, 2.0, 3.0]})
    assert caught.value.op.type == "AddV2"
    with tf.Graph().as_default():
        other = tf.constant(1)
    with pytest.raises(ValueError, match="not an element"):
        sess.run(other)
    with pytest.raises(TypeError):
        sess.run(None)
    with pytest.raises(TypeError):
        sess.run(x, {x: tf.constant(1.0)})


def test_closed_session():
    with tf.Graph().as_default():
        c = tf.constant(1)
        session = tf.Session()
        session.close()
        session.close()
        with pytest.raises(RuntimeError, match="closed"):
            session.run(c)


def test_second_run_does_no_graph_work(sess):
    x = tf.placeholder(tf.float32, [None])
    y = tf.reduce_sum(x * 2.0)
    sess.run(y, {x: [1.0]})
    prepared = sess._master.compilations
    tf.constant(0.0)  # a node that is not fetched changes nothing
    for n in range(1, 4):
        assert sess.run(y, {x: np.ones(n)}) == 2.0 * n
    assert sess._master.compilations == prepared


def test_fetched_arrays_belong_to_the_caller(sess):
    v = tf.Variable(np.zeros([64, 128], np.float32))
    x = tf.placeholder(tf.float32, [64, 128])
    same = tf.identity(x)
    sess.run(v.initializer)
    for fetch in (v, v.read_value(), v.value()):
        out = sess.run(fetch)
        out += 1.0
        assert sess.run(fetch).sum() == 0.0
    fed = np.zeros([64, 128], np.float32)
    for fetch in (x, same, x + 0.0):
        out = sess.run(fetch, {x: fed})
        out += 1.0
        assert fed.sum() == 0.0


def test_make_callable(sess):
    x, y = tf.placeholder(tf.float32), tf.placeholder(tf.float32)
    add = sess.make_callable(x + y, feed_list=[x, y])
    assert add(1.0, 2.0) == 3.0
    with pytest.raises(TypeError, match="2 values"):
        add(1.0)


def test_concurrent_runs_count_exactly(sess):
    v = tf.Variable(0, dtype=tf.int64)
    add = tf.assign_add(v, 1, use_locking=True).op
    read = v + 0
    sess.run(v.initializer)
    errors = []

    def work():
        try:
            for _ in range(50):
                sess.run(add)
                assert sess.run(read) > 0
        except Exception as error:  # shown below
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert sess.run(v) == 400


def test_default_graph_and_session_are_per_thread(sess):
    seen = []
    thread = threading.Thread(target=lambda: seen.append((tf.get_default_session(), tf.get_default_graph())))
    thread.start()
    thread.join(60)
    assert seen[0][0] is None and seen[0][1] is not sess.graph
    assert tf.get_default_session() is sess
    assert tf.constant(2.0).eval() == 2.0
    with pytest.raises(ValueError, match="different"):
        tf.constant(1.0).eval(session=tf.Session(graph=tf.Graph()))


def test_interactive_session():
    with tf.Graph().as_default():
        session = tf.InteractiveSession()
        assert tf.constant(3.0).eval() == 3.0
        v = tf.Variable(1.0)
        v.initializer.run()
        assert v.eval() == 1.0
        session.close()
        assert tf.get_default_session() is None


def test_trace_and_timeline(sess):
    import json

    from penstock.worker.timeline import Timeline

    x = tf.placeholder(tf.float32, [2, 2])
    y = tf.matmul(x, x, name="product")
    metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    sess.run(y, {x: np.eye(2)}, options=options, run_metadata=metadata)
    labels = [n.timeline_label for d in metadata.step_stats.dev_stats for n in d.node_stats]
    assert any("product" in label for label in labels)
    trace = json.loads(Timeline(metadata.step_stats).generate_chrome_trace_format())
    assert any(event.get("ph") == "X" for event in trace["traceEvents"])


def test_a_trace_shows_what_was_compiled_in_the_step(sess, nothing_on_disk, exact_tier):
    x = tf.placeholder(tf.float32, [None], name="x")
    y = tf.identity(x * 3, name="tripled")
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)

    def compiled(size):
        metadata = tf.RunMetadata()
        sess.run(y, {x: np.ones(size)}, options=options, run_metadata=metadata)
        nodes = [n for d in metadata.step_stats.dev_stats for n in d.node_stats]
        assert any("Segment(" in n.timeline_label for n in nodes)
        return [n for n in nodes if "Compile(" in n.timeline_label]

    compiled(5)  # includes what a process compiles once, to find the available options
    [first] = compiled(2)
    assert first.timeline_label == "mul = Compile(float32[2])"
    assert first.all_end_rel_micros > 0
    assert compiled(2) == []
    assert len(compiled(3)) == 1


def test_deadline_ends_an_endless_loop(sess):
    v = tf.Variable(0)
    sess.run(v.initializer)
    loop = tf.while_loop(lambda i: i >= 0, lambda i: tf.assign_add(v, 1) * 0, [0])
    for limit in (500, 5_000, 50_000):  # a slow machine may not have begun the loop by the first
        with pytest.raises(tf.errors.DeadlineExceededError):
            sess.run(loop, options=tf.RunOptions(timeout_in_ms=limit))
        if sess.run(v) > 0:
            break
    assert sess.run(v) > 0


def test_close_cancels_a_running_step():
    with tf.Graph().as_default():
        session = tf.Session()
        v = tf.Variable(0)
        session.run(v.initializer)
        loop = tf.while_loop(lambda i: i >= 0, lambda i: tf.assign_add(v, 1) * 0, [0])
        caught = []

        def work():
            try:
                session.run(loop)
            except tf.errors.CancelledError as error:
                caught.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        while not session._master.running:
            thread.join(0.01)
        session.close()
        thread.join(60)
        assert caught


def test_bad_target():
    with pytest.raises(tf.errors.NotFoundError, match="bogus"):
        tf.Session("bogus://x")


def test_a_session_closed_while_a_step_is_prepared_says_so(monkeypatch):
    session = tf.Session(graph=tf.Graph())
    with session.graph.as_default():
        doubled = tf.constant(1.0) * 2
    register = Worker.register_graph

    def register_and_close(worker, *arguments):
        handle = register(worker, *arguments)
        session.close()
        return handle

    monkeypatch.setattr(Worker, "register_graph", register_and_close)
    with pytest.raises(tf.errors.CancelledError, match="closed"):
        session.run(doubled)
