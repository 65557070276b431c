"""`while` and `for` over tensors."""

import collections

import numpy as np
import pytest
from graph_functions import i32, in_graph

import penstock.v1 as tf
from penstock import errors
from penstock.autograph.wrapper import converted
from penstock.graph.function import Function


def test_while():
    @in_graph
    def collatz(n):
        steps = 0
        while tf.not_equal(n, 1):
            if tf.equal(n % 2, 0):
                n = n // 2
            else:
                n = 3 * n + 1
            steps += 1
        return steps

    assert [collatz(i32(v)) for v in (1, 6, 27)] == [0, 8, 111]


def test_for_over_a_range():
    @in_graph
    def f(n):
        s = 0
        for i in tf.range(n):
            s += i * i
        return s

    assert [f(i32(v)) for v in (0, 1, 5)] == [0, 0, 30]


def test_a_range_is_counted_and_not_made():
    def f(n):
        s = tf.constant(0)
        for i in tf.range(n):
            s += i
        return s

    with tf.Graph().as_default():
        total = tf.autograph.to_graph(f)(tf.placeholder_with_default(3, []))
        needed = tf.graph_util.extract_sub_graph(tf.get_default_graph().as_graph_def(), [total.op.name])
    assert "Range" not in {node.op for node in needed.node}


@pytest.mark.parametrize("step", [-2, 3])
def test_for_over_a_range_with_a_step(step):
    def f(start, limit, delta):
        digits = tf.constant(0)
        for i in tf.range(start, limit, delta):
            digits = digits * 10 + i
        return digits

    expected = int("".join(str(i) for i in range(7 if step < 0 else 1, 1 if step < 0 else 9, step)))
    start, limit = (7, 1) if step < 0 else (1, 9)
    assert in_graph(f)(i32(start), i32(limit), i32(step)) == expected  # known when it runs
    assert in_graph(f)(i32(start), i32(limit), step) == expected  # known before


def test_range_of_a_tensor_is_a_loop_and_of_a_number_is_unrolled():
    traced = []

    @in_graph
    def f(n):
        s = 0
        for i in range(n):
            traced.append(i)
            s += i
        return s

    assert f(i32(5)) == 10
    assert len(traced) == 1
    assert f(i32(-5)) == 0
    del traced[:]
    assert f(4) == 6
    assert traced == [0, 1, 2, 3]


def test_for_over_the_rows_of_a_tensor():
    @in_graph
    def f(x):
        s = tf.zeros([2])
        for row in x:
            s = s + row
        return s

    assert f(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)).tolist() == [4.0, 6.0]
    assert f(np.zeros([0, 2], np.float32)).tolist() == [0.0, 0.0]


def test_for_over_a_tensor_of_unknown_size():
    def f(x):
        s = 0
        for v in x:
            s = s * 10 + v
        return s

    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.int32, [None])
        total = tf.autograph.to_graph(f)(x)
        assert session.run(total, {x: [1, 2, 3]}) == 123


def rows(x):
    s = 0
    for v in x:
        s += v
    return s


def test_for_over_a_scalar_is_refused():
    with pytest.raises(ValueError, match="len requires a non-scalar tensor"):
        in_graph(rows)(i32(1))


def test_for_over_python_containers():
    @in_graph
    def f(a, b):
        s = 0
        for v in {"a": a, "b": b}.values():
            s = s * 10 + v
        for v in [tf.constant(7), 8]:
            s = s * 10 + v
        return s

    assert f(i32(1), i32(2)) == 1278


def test_break_and_continue():
    @in_graph
    def f(n):
        s = 0
        for i in tf.range(n):
            if tf.equal(i, 2):
                continue
            if tf.equal(i, 6):
                break
            s = s * 10 + i
        return s

    assert f(i32(100)) == 1345


def test_break_in_while():
    @in_graph
    def f(x, limit):
        i = 0
        while tf.constant(True):
            i += 1
            x = x * 2
            if x > limit:
                break
        return i, x

    assert f(i32(1), i32(100)) == (7, 128)


def test_break_leaves_the_inner_loop_only():
    @in_graph
    def f(n):
        c = 0
        for i in tf.range(n):
            for j in tf.range(n):
                if j > i:
                    break
                c += 1
        return c

    assert f(i32(4)) == 10


def test_nested_loops():
    @in_graph
    def f(n):
        s = 0
        for i in tf.range(n):
            j = 0
            while j < i:
                if tf.equal((i + j) % 2, 0):
                    s += i * j
                j += 1
        return s

    assert f(i32(7)) == sum(i * j for i in range(7) for j in range(i) if (i + j) % 2 == 0)


def test_structures_as_loop_variables():
    Pair = collections.namedtuple("Pair", "a b")

    @in_graph
    def f(n):
        named, by_key = Pair(tf.constant(0), tf.constant(1)), {"a": 0, "b": 1}
        for _ in tf.range(n):
            named = Pair(named.b, named.a + named.b)
            by_key["a"], by_key["b"] = by_key["b"], by_key["a"] + by_key["b"]
        return named, by_key

    assert f(i32(6)) == ((8, 13), {"a": 8, "b": 13})


def test_attributes_and_items_as_loop_variables():
    class Holder:
        pass

    @in_graph
    def f(n):
        holder, items = Holder(), [0, 1]
        holder.v = tf.constant(0)
        for i in tf.range(n):
            holder.v = holder.v + i
            items[0] = items[0] + i
        return holder.v, items

    assert f(i32(4)) == (6, [6, 1])


def test_a_tensor_array_as_a_loop_variable():
    @in_graph
    def primes(n):
        found = tf.TensorArray(tf.int32, 0, dynamic_size=True)
        for c in tf.range(2, n):
            is_prime = True
            d = 2
            while d * d <= c:
                if tf.equal(c % d, 0):
                    is_prime = False
                    break
                d += 1
            if is_prime:
                found = found.write(found.size(), c)
        return found.stack()

    assert primes(i32(30)).tolist() == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]


def test_a_loop_defines_a_variable():
    @in_graph
    def f(n):
        for i in tf.range(n):
            last = i * 2
        return last

    assert f(i32(3)) == 4
    with pytest.raises(errors.InvalidArgumentError, match="loop must iterate at least once to initialize last"):
        f(i32(0))


def test_a_while_loop_defines_variables_of_many_kinds():
    @in_graph
    def f(n):
        nothing = None
        while n > 0:
            pair = (n * 2, tf.ones([2]))
            flag = True
            nothing = tf.range(n)
            n -= 1
        return pair, flag, nothing

    (number, ones), flag, numbers = f(i32(3))
    assert (number, ones.tolist(), flag, numbers.tolist()) == (2, [1.0, 1.0], True, [0])


def test_the_target_of_a_loop_over_a_range_is_defined_after_it():
    @in_graph
    def f(n):
        total = 0
        for i in tf.range(n):
            total += i
        return i

    assert [f(i32(3)), f(i32(0))] == [2, 0]  # as in TensorFlow, it starts as the first number


def test_a_return_in_each_branch_of_a_loop():
    @in_graph
    def f(n):
        for i in tf.range(n):
            if i > 2:
                return i
            else:
                return -i

    assert f(i32(2)) == 0


def test_loop_options():
    @in_graph
    def grown(n):
        x = tf.constant([1])
        for i in tf.range(n):
            tf.autograph.experimental.set_loop_options(
                shape_invariants=[(x, tf.TensorShape([None]))], parallel_iterations=1
            )
            x = tf.concat([x, [i]], 0)
        return x

    @in_graph
    def limited():
        i = tf.constant(0)
        while i < 1000:
            tf.autograph.experimental.set_loop_options(maximum_iterations=4)
            i += 1
        return i

    @in_graph
    def grown_in_tuple(n):
        x = (tf.constant([1]), 0)
        for i in tf.range(n):
            tf.autograph.experimental.set_loop_options(
                shape_invariants=[(x, (tf.TensorShape([None]), tf.TensorShape([])))]
            )
            x = (tf.concat([x[0], [i]], 0), x[1] + 1)
        return x

    assert grown(i32(3)).tolist() == [1, 0, 1, 2]
    assert [v.tolist() for v in grown_in_tuple(i32(2))] == [[1, 0, 1], 2]
    assert limited() == 4


def test_gradients_go_through_loops_and_branches():
    def f(x, n):
        y = tf.constant(1.0)
        for i in tf.range(n):
            if tf.equal(i % 2, 0):
                y *= x
            else:
                y += x
        return y

    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant(1.5)
        y = tf.autograph.to_graph(f)(x, tf.constant(4))
        assert session.run([y, *tf.gradients(y, x)]) == [6.0, 7.0]


def test_a_trial_of_the_body_leaves_nothing_behind():
    def f(n):
        while n > 0:
            y = tf.identity(n)
            tf.add_to_collection("seen", y)
            n -= 1
        return y

    with tf.Graph().as_default():
        tf.autograph.to_graph(f)(tf.constant(3))
        assert len(tf.get_collection("seen")) == 1


# Errors


def becomes_tensor(x):
    while True:
        x = x * 2
        if x > 100:
            break
    return x


def breaks_python_loop(x):
    for i in range(3):
        if x > i:
            break
    return x


def returns_from_loop(x):
    for i in tf.range(x):
        if i > 1:
            return i
    return -1


def reads_first(n):
    while n > 0:
        y = y + 1  # noqa: F821
        n -= 1
    return y


def other_shape(n):
    x = tf.constant([1])
    for i in tf.range(n):
        x = tf.concat([x, [i]], 0)
    return x


def outside_invariant(n):
    x = tf.constant([1, 2])
    for i in tf.range(n):
        tf.autograph.experimental.set_loop_options(shape_invariants=[(x, tf.TensorShape([3]))])
        x = tf.concat([x, [i]], 0)
    return x


def leaves_invariant(n):
    x = tf.constant([1, 2])
    for i in tf.range(n):
        tf.autograph.experimental.set_loop_options(shape_invariants=[(x, tf.TensorShape([2]))])
        x = tf.concat([x, [i]], 0)
    return x


def invariant_of_other_structure(n):
    x = (n, n)
    for i in tf.range(n):
        tf.autograph.experimental.set_loop_options(shape_invariants=[(x, (tf.TensorShape([]),))])
        x = (i, i)
    return x


def other_type(n):
    x = tf.constant(0)
    while n > 0:
        x = tf.cast(x, tf.float32)
        n -= 1
    return x


def other_python_type(n):
    x = 0
    for _ in tf.range(n):
        x = x + 0.5
    return x


def other_structure(n):
    y = 1.0
    while n > 0:
        y = (y, y)
        n -= 1
    return y


def becomes_none(n):
    y = tf.constant(1)
    while n > 0:
        y = None
        n -= 1
    return y


def leaks(n):
    out = []
    for i in tf.range(n):
        out.append(i)
    return tf.stack(out)


def number_as_condition(n):
    while n:
        n -= 1
    return n


ERRORS = {
    becomes_tensor: (NotImplementedError, "The condition of while loop started as non-Tensor, then changed to Tensor."),
    breaks_python_loop: (NotImplementedError, "break and return statements which depend on a TF condition"),
    returns_from_loop: (NotImplementedError, "a return statement cannot be placed inside this TensorFlow loop"),
    reads_first: (ValueError, "'y' must be defined before the loop"),
    other_shape: (ValueError, "'x' has shape (1,) before the loop, but shape (2,) after one iteration"),
    outside_invariant: (ValueError, "'x' has shape (2,) before the loop, which does not conform with the shape"),
    leaves_invariant: (ValueError, "'x' has shape (3,) after one iteration, which does not conform with the shape"),
    invariant_of_other_structure: (TypeError, "'x' does not have the same nested structure as its"),
    other_type: (TypeError, "'x' has dtype int32 before the loop, but dtype float32 after one iteration"),
    other_python_type: (TypeError, ""),
    other_structure: (TypeError, "'y' does not have the same nested structure after one iteration."),
    becomes_none: (ValueError, "'y' is None at the end of the iteration."),
    leaks: (errors.InaccessibleTensorError, "out of scope"),
    number_as_condition: (ValueError, "condition of while loop expected to be `tf.bool` scalar"),
}


@pytest.mark.parametrize("function", ERRORS, ids=lambda f: f.__name__)
def test_loops_that_cannot_become_nodes(function):
    kind, message = ERRORS[function]
    with tf.Graph().as_default(), pytest.raises(kind) as caught:
        Function.trace("f", [(tf.int32, [])], lambda x: [converted(function)(x)])
    assert type(caught.value) is kind
    assert message in str(caught.value)
    assert "in user code:" in str(caught.value)
