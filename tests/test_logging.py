"""`tf.logging`."""

import contextlib
import io
import logging

import pytest

import penstock.v1 as tf


@pytest.fixture(autouse=True)
def verbosity():
    """Restores the verbosity."""
    before = tf.get_logger().level
    yield
    tf.get_logger().setLevel(before)


@contextlib.contextmanager
def plain_program():
    """No handler on the root logger, as in a program that set up no logging; pytest has its own there during a test."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        yield
    finally:
        root.handlers = before


@plain_program()
def test_warnings_show_and_infos_do_not_by_default(capsys):
    tf.get_logger().setLevel(logging.NOTSET)
    assert tf.logging.get_verbosity() == tf.logging.WARN
    tf.logging.info("quiet")
    tf.logging.warn("loud %d", 3)
    assert capsys.readouterr().err == "WARNING:penstock:loud 3\n"


@plain_program()
def test_app_run_shows_infos(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py"])
    tf.get_logger().setLevel(logging.NOTSET)
    with pytest.raises(SystemExit):
        tf.app.run(main=lambda _: tf.logging.info("global_step/sec: %d", 3))
    assert capsys.readouterr().err == "INFO:penstock:global_step/sec: 3\n"
    assert tf.logging.get_verbosity() == tf.logging.INFO


@plain_program()
def test_app_run_leaves_a_verbosity_that_was_set(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py"])
    tf.logging.set_verbosity(tf.logging.ERROR)
    with pytest.raises(SystemExit):
        tf.app.run(main=lambda _: tf.logging.warning("quiet"))
    assert capsys.readouterr().err == ""


@plain_program()
@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("debug", "DEBUG"),
        ("info", "INFO"),
        ("warn", "WARNING"),
        ("warning", "WARNING"),
        ("error", "ERROR"),
        ("fatal", "CRITICAL"),
    ],
)
def test_levels(capsys, name, level):
    tf.logging.set_verbosity(tf.logging.DEBUG)
    getattr(tf.logging, name)("x=%s", 1)
    assert capsys.readouterr().err == f"{level}:penstock:x=1\n"


@plain_program()
def test_verbosity_by_name_or_number(capsys):
    tf.logging.set_verbosity("ERROR")
    assert tf.logging.get_verbosity() == tf.logging.ERROR
    tf.logging.log(tf.logging.WARN, "no")
    tf.logging.vlog(tf.logging.FATAL, "yes")
    tf.logging.TaskLevelStatusMessage("status")
    assert capsys.readouterr().err == "CRITICAL:penstock:yes\nERROR:penstock:status\n"


@plain_program()
def test_every_n_first_n_and_if(capsys):
    tf.logging.set_verbosity(tf.logging.INFO)
    for step in range(5):
        tf.logging.log_every_n(tf.logging.INFO, "every %d", 2, step)
        tf.logging.log_first_n(tf.logging.INFO, "first %d", 2, step)
        tf.logging.log_if(tf.logging.INFO, "if %d", step == 3, step)
    lines = [line.removeprefix("INFO:penstock:") for line in capsys.readouterr().err.splitlines()]
    assert sorted(lines) == ["every 0", "every 2", "every 4", "first 0", "first 1", "if 3"]


@plain_program()
def test_a_program_with_its_own_logging_gets_each_line_once(capsys):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(filename)s %(message)s"))
    logging.getLogger().addHandler(handler)
    tf.logging.error("once")
    tf.logging.log_if(tf.logging.ERROR, "twice", True)
    # The record names this file, not penstock's.
    assert stream.getvalue() == "test_logging.py once\ntest_logging.py twice\n"
    assert capsys.readouterr().err == ""


def test_the_handler_is_added_once():
    assert tf.get_logger() is tf.get_logger() is logging.getLogger("penstock")
    assert len(tf.get_logger().handlers) == 1
    tf.logging.flush()
