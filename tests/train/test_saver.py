"""Saver: TensorFlow's names, files and errors; saved values are restored, for any partitions."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_programs import GOLDEN, err_msg

import penstock.v1 as tf
from penstock.checkpoint import files
from penstock.checkpoint.bundle import BundleReader

FOLDER = GOLDEN / "checkpoints"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
VALUES = np.load(FOLDER / "expected.npz")


@pytest.mark.parametrize("use_resource", [False, True])
def test_what_was_saved_comes_back(tmp_path: Path, use_resource: bool) -> None:
    with tf.Graph().as_default():
        v = tf.Variable([1.0, 2.0], name="v", use_resource=use_resource)
        names = tf.Variable(["a", "bc"], name="names", use_resource=use_resource)
        saver = tf.train.Saver()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(v.assign([3.0, 4.0]))
            path = saver.save(session, str(tmp_path / "m"), global_step=7)
        assert path == str(tmp_path / "m-7")
        with tf.Session() as session:
            saver.restore(session, path)
            assert session.run(v).tolist() == [3.0, 4.0] and session.run(names).tolist() == [b"a", b"bc"]
    assert tf.train.latest_checkpoint(tmp_path) == path
    with tf.Graph().as_default(), tf.Session() as session:
        restored = tf.train.import_meta_graph(f"{path}.meta", import_scope="again")
        restored.restore(session, path)
        assert session.run("again/v:0").tolist() == [3.0, 4.0] if not use_resource else True
        assert [x.op.name for x in tf.trainable_variables()] == ["again/v", "again/names"]


def test_a_trained_model_of_tensorflow_goes_on_training() -> None:
    golden = EXPECTED["trained"]
    prefix = str(FOLDER / "trained/model.ckpt-3")
    with tf.Graph().as_default() as graph, tf.Session() as session:
        saver = tf.train.import_meta_graph(f"{prefix}.meta")
        saver.restore(session, prefix)
        feeds = {"x:0": VALUES[golden["x_key"]]}
        assert session.run("loss:0", feeds) == pytest.approx(golden["loss_after_restore"], rel=1e-5)
        session.run(graph.get_collection("train_op")[0], feeds)
        assert session.run("loss:0", feeds) == pytest.approx(golden["loss_after_one_more_step"], rel=1e-5)


def test_into_another_number_of_partitions(tmp_path: Path) -> None:
    prefix = str(FOLDER / "partitioned/model.ckpt-1")
    with tf.Graph().as_default(), tf.Session() as session:
        with tf.variable_scope("p", partitioner=tf.fixed_size_partitioner(2)):
            emb = tf.get_variable("emb", [13, 2])
        cols = tf.get_variable("q/cols", [2, 6])
        saver = tf.train.Saver([*emb, cols])
        saver.restore(session, prefix)
        assert [session.run(part).tolist() for part in emb] == EXPECTED["partitioned_restore"]["parts"]
        whole = session.run(tf.convert_to_tensor(emb))
        path = saver.save(session, str(tmp_path / "again"))
    np.testing.assert_array_equal(BundleReader(path).read("p/emb"), whole)


def test_renamed_and_partial(tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        a, b = tf.Variable([1.0, 2.0, 3.0], name="a"), tf.Variable(5.0, name="b")
        saver = tf.train.Saver({"new/name_a": a})
        saver.restore(session, str(FOLDER / "renamed/m"))
        wanted = EXPECTED["checkpoints"]["renamed/m"]["variables"]["new/name_a"]
        np.testing.assert_array_equal(session.run(a), VALUES[wanted["key"]])
        assert session.run(tf.report_uninitialized_variables()).tolist() == [b"b"]
        assert session.run(b.initializer) is None


def test_sharded(tmp_path: Path) -> None:
    config = tf.ConfigProto(device_count={"CPU": 2})
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        with tf.device("/cpu:0"):
            a = tf.Variable([1.0, 2.0], name="a")
        with tf.device("/cpu:1"):
            b = tf.Variable([3.0], name="b", use_resource=True)
        saver = tf.train.Saver(sharded=True)
        session.run(tf.global_variables_initializer())
        path = saver.save(session, str(tmp_path / "m"), write_meta_graph=False)
        session.run([a.assign([0.0, 0.0]), b.assign([0.0])])
        saver.restore(session, path)
        assert session.run(a).tolist() == [1.0, 2.0] and session.run(b).tolist() == [3.0]
    reader = BundleReader(path)
    assert reader.names() == ["a", "b"]
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint",
        *(f"m.data-{i:05d}-of-{reader.num_shards:05d}" for i in range(reader.num_shards)),
        "m.index",
    ]


def test_rotation(tmp_path: Path, monkeypatch: Any) -> None:
    golden = EXPECTED["rotation"]
    monkeypatch.chdir(tmp_path)
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.Variable(0.0, name="v")
        saver = tf.train.Saver(max_to_keep=golden["max_to_keep"], save_relative_paths=True)
        session.run(v.initializer)
        for row in golden["sequence"]:
            with_meta = row["step"] in (1, 8)
            returned = saver.save(session, "rotation/model.ckpt", row["step"], write_meta_graph=with_meta)
            assert returned == row["returned"]
            assert sorted(os.listdir("rotation")) == row["files"]
            text = [line for line in Path("rotation/checkpoint").read_text().splitlines() if "timestamp" not in line]
            assert text == row["checkpoint_text"].splitlines()
            assert saver.last_checkpoints == row["last_checkpoints"]
            assert tf.train.latest_checkpoint("rotation") == row["latest_checkpoint"]
            state = tf.train.get_checkpoint_state("rotation")
            assert state.model_checkpoint_path == row["state"]["model_checkpoint_path"]
            assert list(state.all_model_checkpoint_paths) == row["state"]["all"]


_KEPT = [case for case in EXPECTED["saver_behaviour"] if "kwargs" in case]


@pytest.mark.parametrize("case", _KEPT, ids=lambda case: str(case["kwargs"]))
def test_max_to_keep(case: dict[str, Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.Variable(0.0, name="v")
        saver = tf.train.Saver(**case["kwargs"])
        session.run(tf.global_variables_initializer())
        for step in range(3):
            saver.save(session, "tmp_rot/m", step, write_meta_graph=False)
        assert sorted(os.listdir("tmp_rot")) == case["files"]
        assert saver.last_checkpoints == case["last_checkpoints"]
        text = [line for line in Path("tmp_rot/checkpoint").read_text().splitlines() if "timestamp" not in line]
        assert "\n".join(text) == case["checkpoint_text"]
        assert tf.train.latest_checkpoint("tmp_rot") == case["latest"]


def test_errors(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with tf.Graph().as_default(), tf.Session() as session:
        with pytest.raises(ValueError, match="No variables to save"):
            tf.train.Saver()
        tf.Variable([1.0], name="v")
        saver = tf.train.Saver()
        with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized value v"):
            saver.save(session, "m")
        session.run(tf.global_variables_initializer())
        assert err_msg(saver.save, session, 3)[0] == "TypeError"
        assert err_msg(saver.restore, session, None) == ["ValueError", "Can't load save_path when it is None."]
        assert err_msg(saver.restore, session, "zzz")[1] == "The passed save_path is not a valid checkpoint: zzz"
        assert tf.train.latest_checkpoint("nowhere") is None
        path = saver.save(session, "new_directory/m")
    for make, error, text in (
        (lambda: tf.Variable([1.0, 2.0], name="v"), tf.errors.InvalidArgumentError, "another shape or type"),
        (lambda: tf.Variable([1], name="v"), tf.errors.InvalidArgumentError, "is float32 in checkpoint"),
        (lambda: tf.Variable([1.0], name="w"), tf.errors.NotFoundError, "Key w not found in checkpoint"),
    ):
        with tf.Graph().as_default(), tf.Session() as session:
            make()
            with pytest.raises(error, match=text):
                tf.train.Saver().restore(session, path)


def test_a_save_that_fails_leaves_the_last_one(tmp_path: Path, monkeypatch: Any) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.Variable(1.0, name="v")
        saver = tf.train.Saver(max_to_keep=1)
        session.run(v.initializer)
        good = saver.save(session, str(tmp_path / "m"), 1)
        session.run(v.assign(2.0))
        real = {name: getattr(files, name) for name in ("create", "write", "finish", "rename", "remove")}
        for fail_at in range(60):
            left = iter(range(fail_at))

            def failing(real: Any, left: Any = left) -> Any:
                def call(*args: Any) -> Any:
                    if next(left, None) is None:
                        raise tf.errors.UnknownError(None, None, "the disk is gone")
                    return real(*args)

                return call

            with monkeypatch.context() as patch:
                for name, function in real.items():
                    patch.setattr(files, name, failing(function))
                try:
                    last = saver.save(session, str(tmp_path / "m"), 2)
                except tf.errors.UnknownError:
                    last = None
            latest = tf.train.latest_checkpoint(tmp_path)
            assert latest in (good, str(tmp_path / "m-2"))
            assert BundleReader(latest).read("v") == (1.0 if latest == good else 2.0)
            if last is not None and not list(left):
                break
        else:
            raise AssertionError("the save never came through")


def test_saver_def_and_deferred_build() -> None:
    with tf.Graph().as_default():
        saver = tf.train.Saver(defer_build=True, max_to_keep=3)
        tf.Variable(1.0, name="v")
        saver.build()
        proto = saver.as_saver_def()
        assert (proto.filename_tensor_name, proto.save_tensor_name) == ("save/Const:0", "save/control_dependency:0")
        assert (proto.restore_op_name, proto.max_to_keep) == ("save/restore_all", 3)
        assert tf.train.Saver(saver_def=proto).as_saver_def() == proto


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_saves_while_steps_update(tmp_path: Path, dtype: str) -> None:
    """A save reads variables without a copy: it writes one value of each, never half of the next."""
    with tf.Graph().as_default(), tf.Session() as session:
        large = [tf.Variable(tf.zeros([1 << 19], dtype), name=f"v{i}", use_resource=bool(i % 2)) for i in range(4)]
        raised = tf.group(*[v.assign_add(tf.ones([1 << 19], dtype)) for v in large])
        saver = tf.train.Saver(max_to_keep=2)
        session.run(tf.global_variables_initializer())
        begun, over = threading.Event(), threading.Event()

        def update() -> None:
            while not over.is_set():
                session.run(raised)
                begun.set()

        thread = threading.Thread(target=update)
        thread.start()
        try:
            assert begun.wait(60)
            paths = [saver.save(session, str(tmp_path / "m"), i, write_meta_graph=False) for i in range(8)]
        finally:
            over.set()
            thread.join()
        seen = [[np.unique(BundleReader(p).read(f"v{i}")) for i in range(4)] for p in paths[-2:]]
        assert all(len(values) == 1 for row in seen for values in row)
        before = session.run(large[0])[0]
        session.run(raised)
        saver.restore(session, paths[-1])
        session.run(raised)
        assert before > 0 and session.run(large[1])[0] == seen[-1][1][0] + 1


def test_a_save_that_began_earlier_is_not_the_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Supervisor's thread may be in the middle of a save when the program makes its last one."""
    began, may_end = threading.Event(), threading.Event()
    with tf.Graph().as_default(), tf.Session() as session:
        tf.Variable(1.0)
        saver = tf.train.Saver()
        session.run(tf.global_variables_initializer())
        export = saver.export_meta_graph

        def slow_at_first(filename: str, **given: Any) -> Any:
            if filename.endswith("m-0.meta"):
                began.set()
                assert may_end.wait(60)
            return export(filename, **given)

        monkeypatch.setattr(saver, "export_meta_graph", slow_at_first)
        threads = [
            threading.Thread(target=saver.save, args=(session, str(tmp_path / "m"), step), daemon=True)
            for step in (0, 4)
        ]
        threads[0].start()
        assert began.wait(60)
        threads[1].start()
        threads[1].join(0.2)  # it would be done by then
        may_end.set()
        for thread in threads:
            thread.join(60)
    assert tf.train.latest_checkpoint(tmp_path) == str(tmp_path / "m-4")
