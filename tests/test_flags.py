"""Flags and `tf.app.run`."""

import sys

import pytest
from absl import flags as absl_flags

from penstock import app, flags


class Flags:
    """The module's functions with separate flags, so that tests do not see each other's."""

    def __init__(self, values, lazy):
        self.values = values
        self.FLAGS = lazy

    def __getattr__(self, name):
        define = getattr(flags, name)
        return lambda *args, **kwargs: define(*args, flag_values=self.values, **kwargs)


@pytest.fixture
def own(monkeypatch):
    values = absl_flags.FlagValues()
    lazy = flags.LazyFlags(values)
    monkeypatch.setattr(flags, "FLAGS", lazy)
    return Flags(values, lazy)


@pytest.fixture
def argv(monkeypatch):
    return lambda *args: monkeypatch.setattr(sys, "argv", ["train.py", *args])


def test_reading_a_flag_parses_the_command_line(own, argv):
    argv("--steps=5", "--rate", "0.5", "--sync", "--noverbose", "--jobs=ps,worker", "--mode=fast")
    own.DEFINE_integer("steps", 1, "Steps.")
    own.DEFINE_float("rate", 0.1, "Rate.")
    own.DEFINE_boolean("sync", False, "Sync.")
    own.DEFINE_bool("verbose", True, "Verbose.")
    own.DEFINE_list("jobs", [], "Jobs.")
    own.DEFINE_enum("mode", "slow", ["slow", "fast"], "Mode.")
    own.DEFINE_string("name", "default", "Name.")
    seen = own.FLAGS
    assert not seen.is_parsed()
    assert (seen.steps, seen.rate, seen.sync, seen.verbose) == (5, 0.5, True, False)
    assert (seen.jobs, seen.mode, seen.name) == (["ps", "worker"], "fast", "default")
    assert seen.is_parsed()


def test_unknown_flags_are_left_in_argv(own, argv):
    argv("--other=1", "--steps=5", "data.csv", "--more", "2")
    own.DEFINE_integer("steps", 1, "Steps.")
    assert own.FLAGS.steps == 5
    assert sys.argv == ["train.py", "--other=1", "--steps=5", "data.csv", "--more", "2"]
    assert flags.parse(sys.argv) == ["train.py", "--other=1", "data.csv", "--more", "2"]


def test_a_flag_defined_after_the_first_read_is_parsed_too(own, argv):
    argv("--early=1", "--late=2")
    own.DEFINE_integer("early", 0, "Early.")
    assert own.FLAGS.early == 1
    own.DEFINE_integer("late", 0, "Late.")
    assert own.FLAGS.late == 2


def test_old_parameter_names(own, argv):
    argv()
    own.DEFINE_string(flag_name="name", default_value="x", docstring="Name.")
    assert own.FLAGS.name == "x"
    assert own.FLAGS["name"].help == "Name."


def test_values_can_be_set_and_listed(own, argv):
    argv("--steps=5")
    own.DEFINE_integer("steps", 1, "Steps.")
    own.DEFINE_string("name", "x", "Name.")
    own.FLAGS.name = "y"
    assert own.FLAGS.flag_values_dict() == {"steps": 5, "name": "y"}
    assert set(own.FLAGS.__flags) == {"steps", "name"}
    assert sorted(own.FLAGS) == ["name", "steps"]
    assert len(own.FLAGS) == 2
    assert "steps" in own.FLAGS and "other" not in own.FLAGS
    assert {"steps", "name"} <= set(dir(own.FLAGS))
    del own.FLAGS.name
    assert "name" not in own.FLAGS


def test_parse_flags_by_its_old_name(own, argv):
    argv("--steps=5", "rest")
    own.DEFINE_integer("steps", 1, "Steps.")
    assert own.FLAGS._parse_flags() == ["rest"]
    assert own.FLAGS._parse_flags(["--steps=7"]) == []
    assert own.FLAGS.steps == 7


def test_an_undefined_flag_names_the_nearest(own, argv):
    argv()
    own.DEFINE_integer("batch_size", 1, "Batch.")
    with pytest.raises(AttributeError, match=r"No flag 'batchsize' is defined.*--batch_size"):
        _ = own.FLAGS.batchsize


def test_defining_a_flag_twice_is_refused(own, argv):
    argv()
    own.DEFINE_integer("steps", 1, "Steps.")
    with pytest.raises(absl_flags.DuplicateFlagError, match="steps"):
        own.DEFINE_integer("steps", 2, "Steps.")


def test_run_passes_what_is_not_a_flag_and_exits_with_the_result(own, argv):
    argv("--steps=5", "data.csv", "--other")
    own.DEFINE_integer("steps", 1, "Steps.")
    seen = []
    with pytest.raises(SystemExit) as stop:
        app.run(main=lambda rest: seen.append((own.FLAGS.steps, rest)) or 3)
    assert stop.value.code == 3
    assert seen == [(5, ["train.py", "data.csv", "--other"])]


def test_run_takes_an_argv(own, argv):
    argv("--steps=5")
    own.DEFINE_integer("steps", 1, "Steps.")
    with pytest.raises(SystemExit) as stop:
        app.run(main=lambda rest: (own.FLAGS.steps, rest), argv=["other.py", "--steps=6", "x"])
    assert stop.value.code == (6, ["other.py", "x"])


def test_run_finds_the_programs_main(own, argv, monkeypatch):
    argv()
    monkeypatch.setattr(sys.modules["__main__"], "main", lambda rest: 4, raising=False)
    with pytest.raises(SystemExit) as stop:
        app.run()
    assert stop.value.code == 4


def test_run_without_a_main_says_so(own, argv, monkeypatch):
    argv()
    monkeypatch.delattr(sys.modules["__main__"], "main", raising=False)
    with pytest.raises(ValueError, match=r"found no function 'main' in 'train\.py'"):
        app.run()


def test_run_reports_a_bad_value(own, argv, capsys):
    argv("--steps=many")
    own.DEFINE_integer("steps", 1, "Steps.")
    with pytest.raises(SystemExit) as stop:
        app.run(main=lambda rest: None)
    assert stop.value.code == 1
    assert "--steps=many" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--help", "--helpshort", "--helpfull", "-?"])
def test_help_lists_the_flags(own, argv, capsys, option):
    argv(option)
    own.DEFINE_integer("steps", 1, "How many steps.")
    own.values.register_key_flag_for_module("train.py", own.values["steps"])
    with pytest.raises(SystemExit) as stop:
        _ = own.FLAGS.steps
    assert stop.value.code == 1
    shown = capsys.readouterr().out
    assert "--steps: How many steps." in shown


def test_help_after_two_dashes_is_the_programs_own(own, argv):
    argv("--", "--help")
    own.DEFINE_integer("steps", 1, "Steps.")
    assert own.FLAGS.steps == 1
