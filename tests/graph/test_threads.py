"""Many threads build one graph: every node exists once, and scopes do not leak from one thread to another."""

import threading

import penstock.v1 as tf


def test_threads_add_nodes_to_one_graph():
    graph = tf.Graph()
    errors = []

    def work(number):
        try:
            with graph.as_default(), tf.name_scope(f"thread{number}"), tf.device(f"/cpu:{number}"):
                for _ in range(50):
                    total = tf.constant(1.0) + 2.0
                    assert total.op.name.startswith(f"thread{number}/add"), total.op.name
                    assert total.op.device == f"/device:CPU:{number}"
        except Exception as error:  # shown below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    names = [op.name for op in graph.get_operations()]
    assert len(names) == len(set(names)) == 8 * 50 * 3
