"""Addresses of servers, valid and refused ones, and how Ctrl-C ends a server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from leaks import leak_check

import penstock.v1 as tf

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 60


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":2222", "localhost:http", "localhost:65536", ""])
def test_an_address_without_a_port_is_refused(address: str) -> None:
    says = f"Task 1 of job 'ps' has the address '{address}', which is no host and port. Write it as 'localhost:2222'"
    with leak_check(), pytest.raises(tf.errors.InvalidArgumentError, match=says):
        tf.train.Server({"ps": ["localhost:0", address]}, job_name="ps", task_index=0)
    if address:
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"The target 'grpc://{address}' has the address"):
            tf.Session(f"grpc://{address}")


def test_a_server_says_where_it_listens(capfd: Any, monkeypatch: Any) -> None:
    for level, says in (("0", True), ("1", True), ("2", False)):
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
        with tf.train.Server({"ps": ["localhost:0"]}) as server:
            said = f"penstock: /job:ps/replica:0/task:0 is listening at {server.target}\n"
        assert (said in capfd.readouterr().err) == says


SERVER = """
import sys, threading, time, traceback
import penstock.v1 as tf
server = tf.train.Server({"ps": ["localhost:0"]})
def tell():
    while "join" not in {frame.f_code.co_name for frame, _ in traceback.walk_stack(sys._current_frames()[main])}:
        time.sleep(0.01)
    print(server.target, flush=True)
main = threading.get_ident()
threading.Thread(target=tell).start()
server.join()
"""


def test_an_interrupt_ends_a_server_in_one_line() -> None:
    paths = os.pathsep.join([str(ROOT), *sys.path])
    env = {**os.environ, "PYTHONPATH": paths, "PENSTOCK_FULL_TRACEBACK": "0", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", SERVER]
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # a signal that is ignored here would be ignored in the child
    try:
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            assert process.stdout is not None and process.stderr is not None
            target = process.stdout.readline().strip()
            process.stderr.readline()
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
    name = "/job:ps/replica:0/task:0"
    assert (process.returncode, said) == (-2, f"penstock: {name} at {target} was stopped by Ctrl-C\n")
