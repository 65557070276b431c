"""The `penstock` command, in separate processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock import __version__ as VERSION

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 60


def environment():
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "COLUMNS": "200", "NO_COLOR": "1"}


def penstock(*args, **kwargs):
    command = [sys.executable, "-m", "penstock", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, env=environment(), **kwargs)


@pytest.fixture
def script(tmp_path):
    def write(text, name="program.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_run_gives_the_script_penstock_its_arguments_and_main(script):
    path = script("import sys, tensorflow as tf\nprint(__name__, tf.gfile.__name__, sys.argv)\n")
    done = penstock("run", path, "--steps=3", "-x", "--", "data.csv", "--no-such-option")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (
        f"__main__ penstock.v1.gfile {[str(path), '--steps=3', '-x', '--', 'data.csv', '--no-such-option']}"
    )


@pytest.mark.parametrize("option", ["--help", "-h", "--version", "run", "version"])
def test_options_after_the_script_are_its_own(script, option):
    done = penstock("run", script("import sys\nprint(sys.argv[1:])\n"), option)
    assert (done.returncode, done.stdout.strip()) == (0, str([option]))


def test_flags_and_app_work_as_in_a_program(script):
    path = script(
        '''"""Trains nothing."""
import tensorflow.compat.v1 as tf
tf.app.flags.DEFINE_integer("steps", 1, "How many steps.")
FLAGS = tf.app.flags.FLAGS

def main(argv):
    print(FLAGS.steps, argv[1:])
    return 5

if __name__ == "__main__":
    tf.app.run()
'''
    )
    done = penstock("run", path, "--steps=3", "--unknown", "data.csv")
    assert (done.returncode, done.stdout.strip()) == (5, "3 ['--unknown', 'data.csv']")
    helped = penstock("run", path, "--help")
    assert helped.returncode == 1
    assert "Trains nothing." in helped.stdout and "--steps: How many steps." in helped.stdout


def test_the_scripts_folder_comes_first_on_the_path(script, tmp_path):
    script("value = 7\n", "neighbour.py")
    path = script("import sys, neighbour\nprint(neighbour.value, sys.path[0])\n")
    done = penstock("run", path.name, cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, f"7 {tmp_path.resolve()}"), done.stderr


@pytest.mark.parametrize(
    ("ending", "code", "says"),
    [
        ("", 0, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('reason')", 1, "reason"),
        ("raise ValueError('broken')", 1, "ValueError: broken"),
        ("raise EOFError('no input')", 1, "EOFError: no input"),
        ("raise BrokenPipeError(32, 'pipe')", 1, "BrokenPipeError"),
        ("import tensorflow.no_such_part", 1, "penstock has no module 'tensorflow.no_such_part'"),
    ],
)
def test_the_exit_code_is_the_scripts(script, ending, code, says):
    done = penstock("run", script(f"print('started')\n{ending}\n"))
    assert done.returncode == code
    assert done.stdout.strip() == "started"
    assert says in done.stderr
    # Errors are shown as Python shows them, from the script's own line.
    if "Error" in says:
        assert 'program.py", line 2' in done.stderr


def test_an_interrupt_reaches_the_script(script):
    path = script("import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "penstock", "run", str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors


@pytest.mark.parametrize(("name", "says"), [("none.py", "does not exist"), (".", "is a directory")])
def test_a_script_that_is_not_there(tmp_path, name, says):
    done = penstock("run", name, cwd=tmp_path)
    assert done.returncode == 2
    assert f"the script '{name}' {says}" in done.stderr
    assert "Traceback" not in done.stderr


def test_run_without_a_script_is_a_usage_error():
    done = penstock("run")
    assert done.returncode == 2
    assert "script" in done.stderr.lower()


def test_help_and_version():
    assert "Run a TensorFlow script unmodified" in penstock("--help").stdout
    assert "Passed to the script untouched." in penstock("run", "--help").stdout
    done = penstock("version")
    assert (done.returncode, done.stdout) == (0, f"penstock {VERSION}\n")
    assert penstock("--version").stdout == done.stdout


def test_shells_complete_the_commands():
    command = [sys.executable, "-m", "penstock"]

    def run(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
        env = {**environment(), **variables}
        return subprocess.run([*command, *args], capture_output=True, text=True, timeout=DEADLINE, env=env)

    # The shell is named, since the one that would be found among the parent processes depends on the machine.
    done = run("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert (done.returncode, "complete -o default -F _penstock_completion penstock" in done.stdout) == (0, True)
    done = run(_PENSTOCK_COMPLETE="complete_bash", COMP_WORDS="penstock la", COMP_CWORD="1")
    assert done.stdout.split() == ["launch"]


def test_a_module_runs_as_python_would_run_it(tmp_path):
    package = tmp_path / "project"
    package.mkdir()
    (package / "__init__.py").write_text("import tensorflow\n")
    text = "import sys\nfrom . import tensorflow as tf\nprint(__name__, tf.gfile, sys.argv)\n"
    (package / "train.py").write_text(text)
    done = penstock("run", "-m", "project.train", "--steps=3", "-m", "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("__main__ <module 'penstock.v1.gfile'")
    assert done.stdout.endswith(f"{[str(package / 'train.py'), '--steps=3', '-m', '--help']}\n")
    done = penstock("run", "-m", "no_such_module", cwd=tmp_path)
    assert (done.returncode, "there is no module 'no_such_module'" in done.stderr) == (2, True)


def test_importing_the_command_does_not_import_jax():
    code = "import sys, penstock.launch.cli; print('jax' in sys.modules)"
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, env=environment()
    )
    assert done.stdout.strip() == "False", (done.stdout, done.stderr, time.monotonic() - started)


EAGER = """import tensorflow as tf
from tensorflow.compat.v1 import Session

print(tf.__version__, (tf.constant([1.0]) + 1.0).numpy())
with tf.Graph().as_default():
    x = tf.compat.v1.placeholder(tf.float32, [None])
    with Session() as session:
        print(session.run(tf.reduce_sum(x), {x: [1.0, 2.0]}))
"""
NEUTRAL = "import tensorflow as tf\nprint(tf.__version__, tf.executing_eagerly())\n"


def test_a_script_for_tensorflow_2_runs_eagerly(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(EAGER)
    done = penstock("run", str(script))
    assert (done.returncode, done.stdout) == (0, "2.21.0 [2.]\n3.0\n"), done.stderr


@pytest.mark.parametrize(("options", "says"), [((), "2.21.0 True"), (("--api", "1"), "1.15.0 False")])
def test_the_api_can_be_chosen(tmp_path, options, says):
    script = tmp_path / "train.py"
    script.write_text(NEUTRAL)
    done = penstock("run", *options, str(script))
    assert (done.returncode, done.stdout) == (0, f"{says}\n"), done.stderr


def test_the_1x_api_of_tensorflow_2_stays_graphs(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()\nx = tf.placeholder(tf.float32, [3])\n"
        "print(tf.Session().run(x, {x: [1, 2, 3]}), x.shape[0].value)\n"
    )
    done = penstock("run", str(script))
    assert (done.returncode, done.stdout) == (0, "[1. 2. 3.] 3\n"), done.stderr
