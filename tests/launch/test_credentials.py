"""`penstock credentials create`, in a separate process and in this one."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.launch.cli import app
from penstock.wire.credentials import Credentials

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 60


def penstock(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args], obj=[])


def test_create_writes_credentials_and_says_what_to_do_next(tmp_path):
    target = tmp_path / "of my job"
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "credentials", "create", target.name, "--host", "ps0", "--host=10.0.0.7"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(target.stat().st_mode) == 0o700
    made = Credentials.load(target)
    for name in os.listdir(target):
        assert f"  {name} " in done.stdout
    assert f"export PENSTOCK_CREDENTIALS='{target.resolve()}'" in done.stdout
    assert "Copy the directory to each machine" in done.stdout
    assert f"{made.valid_until():%Y-%m-%d}" in done.stdout
    assert made.token.decode() not in done.stdout + done.stderr


def test_days(tmp_path):
    assert penstock("credentials", "create", tmp_path / "a", "--days", "2").exit_code == 0
    assert penstock("credentials", "create", tmp_path / "b", "--days", "9").exit_code == 0
    ends = [Credentials.load(tmp_path / name).valid_until() for name in "ab"]
    assert round((ends[1] - ends[0]).total_seconds() / 86400) == 7


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["."], 1, "give a new directory, or remove this one first"),
        (["new", "--host", "ps0:2222"], 1, "without a port, received 'ps0:2222'"),
        (["new", "--days", "0"], 2, "--days"),
        ([], 2, "DIR"),
    ],
)
def test_mistakes_are_told_without_a_traceback(tmp_path, monkeypatch, args, code, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    done = penstock("credentials", "create", *args)
    assert done.exit_code == code
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.output
    assert os.listdir(tmp_path) == ["file"]


def test_help_without_a_command():
    assert "create" in penstock("credentials").output
    assert "credentials" in penstock("--help").output


def test_the_command_line_starts_without_what_only_credentials_need():
    code = "import sys, penstock.launch.cli; print([n for n in ('ssl', 'grpc', 'cryptography') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr
