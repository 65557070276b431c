"""Files: the same results and errors as in TensorFlow 2.21."""

import pytest

import penstock.v1 as tf

gfile = tf.gfile


@pytest.fixture
def here(tmp_path):
    """A directory with `file`, `.hidden` and `dir/inner/deep`."""
    (tmp_path / "file").write_bytes(b"one\ntwo\nthree")
    (tmp_path / ".hidden").write_bytes(b"h")
    (tmp_path / "dir" / "inner").mkdir(parents=True)
    (tmp_path / "dir" / "inner" / "deep").write_bytes(b"d")
    return tmp_path


def test_exists_and_kinds(here):
    assert gfile.Exists(here) and gfile.Exists(str(here / "file")) and gfile.Exists(bytes(here))
    assert gfile.Exists(f"file://{here}/file")
    assert not gfile.Exists(here / "none") and not gfile.Exists("")
    assert gfile.IsDirectory(here) and not gfile.IsDirectory(here / "file") and not gfile.IsDirectory(here / "none")


def test_stat(here):
    found = gfile.Stat(here / "file")
    assert (found.length, found.is_directory) == (13, False)
    assert found.mtime_nsec == (here / "file").stat().st_mtime_ns
    assert gfile.Stat(here).is_directory


def test_listing(here):
    assert sorted(gfile.ListDirectory(here)) == [".hidden", "dir", "file"]
    assert sorted(gfile.Glob(f"{here}/*")) == [f"{here}/.hidden", f"{here}/dir", f"{here}/file"]
    assert gfile.Glob(f"{here}/dir/*/deep") == [f"{here}/dir/inner/deep"]
    assert gfile.Glob([f"{here}/[f]ile", f"{here}/d*"]) == [f"{here}/file", f"{here}/dir"]
    assert gfile.Glob(f"{here}/none/*") == []


def test_walk(here):
    down = [(f"{here}", ["dir"], [".hidden", "file"]), (f"{here}/dir", ["inner"], [])]
    deepest = (f"{here}/dir/inner", [], ["deep"])
    walked = [(top, dirs, sorted(files)) for top, dirs, files in gfile.Walk(here)]
    assert walked == [*down, deepest]
    up = [(top, dirs, sorted(files)) for top, dirs, files in gfile.Walk(here, in_order=False)]
    assert up == [deepest, *reversed(down)]
    assert list(gfile.Walk(here / "none")) == list(gfile.Walk(here / "file")) == []


def test_making_directories(here):
    gfile.MkDir(here / "new")
    gfile.MkDir(here / "new")
    gfile.MakeDirs(here / "a" / "b")
    gfile.MakeDirs(here / "a" / "b")
    assert gfile.IsDirectory(here / "a" / "b")


def test_copy_and_rename(here):
    gfile.Copy(here / "file", here / "copy")
    gfile.Copy(here / "file", here / "copy", overwrite=True)
    assert (here / "copy").read_bytes() == b"one\ntwo\nthree"
    gfile.Rename(here / "copy", here / "moved")
    assert not gfile.Exists(here / "copy")
    gfile.Rename(here / "moved", here / "file", overwrite=True)
    assert not gfile.Exists(here / "moved")


def test_removal(here):
    gfile.Remove(here / "file")
    gfile.DeleteRecursively(here / "dir")
    gfile.DeleteRecursively(here / ".hidden")
    assert gfile.ListDirectory(here) == []


FAILURES = {
    "mkdir without parent": (tf.errors.NotFoundError, lambda d: gfile.MkDir(d / "a" / "b")),
    "makedirs over a file": (tf.errors.FailedPreconditionError, lambda d: gfile.MakeDirs(d / "file")),
    "makedirs under a file": (tf.errors.FailedPreconditionError, lambda d: gfile.MakeDirs(d / "file" / "x")),
    "remove nothing": (tf.errors.NotFoundError, lambda d: gfile.Remove(d / "none")),
    "remove a directory": (tf.errors.FailedPreconditionError, lambda d: gfile.Remove(d / "dir")),
    "delete nothing": (tf.errors.NotFoundError, lambda d: gfile.DeleteRecursively(d / "none")),
    "list nothing": (tf.errors.NotFoundError, lambda d: gfile.ListDirectory(d / "none")),
    "list a file": (tf.errors.NotFoundError, lambda d: gfile.ListDirectory(d / "file")),
    "stat nothing": (tf.errors.NotFoundError, lambda d: gfile.Stat(d / "none")),
    "copy nothing": (tf.errors.NotFoundError, lambda d: gfile.Copy(d / "none", d / "x")),
    "copy over a file": (tf.errors.AlreadyExistsError, lambda d: gfile.Copy(d / "file", d / ".hidden")),
    "rename nothing": (tf.errors.NotFoundError, lambda d: gfile.Rename(d / "none", d / "x")),
    "rename over a file": (tf.errors.AlreadyExistsError, lambda d: gfile.Rename(d / "file", d / ".hidden")),
    "read nothing": (tf.errors.NotFoundError, lambda d: gfile.GFile(d / "none").read()),
    "size of nothing": (tf.errors.NotFoundError, lambda d: gfile.GFile(d / "none").size()),
    "read a directory": (tf.errors.FailedPreconditionError, lambda d: gfile.GFile(d / "dir").read()),
    "write a directory": (tf.errors.FailedPreconditionError, lambda d: gfile.GFile(d / "dir", "w").write("x")),
    "write without parent": (tf.errors.NotFoundError, lambda d: gfile.GFile(d / "no" / "x", "w").write("x")),
    "unknown mode": (tf.errors.InvalidArgumentError, lambda d: gfile.GFile(d / "file", "rw")),
    "write to a reader": (tf.errors.PermissionDeniedError, lambda d: gfile.GFile(d / "file").write("x")),
    "read from a writer": (tf.errors.PermissionDeniedError, lambda d: gfile.GFile(d / "x", "w").read()),
    "seek before the start": (tf.errors.InvalidArgumentError, lambda d: gfile.GFile(d / "file").seek(-1)),
    "seek past the end": (tf.errors.OutOfRangeError, lambda d: gfile.GFile(d / "file").seek(100)),
    "seek from nowhere": (tf.errors.InvalidArgumentError, lambda d: gfile.GFile(d / "file").seek(0, 7)),
    "seek without offset": (TypeError, lambda d: gfile.GFile(d / "file").seek()),
    "write a number": (TypeError, lambda d: gfile.GFile(d / "x", "w").write(3)),
    "unknown scheme": (tf.errors.UnimplementedError, lambda d: gfile.Exists("gs://bucket/x")),
    "path of a wrong type": (TypeError, lambda d: gfile.Exists(3)),
    "text that is not UTF-8": (UnicodeDecodeError, lambda d: _bad_text(d).read()),
}


def _bad_text(directory):
    (directory / "bad").write_bytes(b"\xff\xfe")
    return gfile.GFile(directory / "bad")


@pytest.mark.parametrize("case", FAILURES)
def test_failures(here, case):
    kind, call = FAILURES[case]
    with pytest.raises(kind) as caught:
        call(here)
    assert type(caught.value) is kind


def test_errors_name_the_file(here):
    with pytest.raises(tf.errors.NotFoundError, match=f"{here}/none; No such file or directory"):
        gfile.GFile(here / "none").read()


def test_opening_is_lazy(here):
    gfile.GFile(here / "none")
    with gfile.GFile(here / "untouched", "w"):
        pass
    assert not gfile.Exists(here / "untouched")


def test_reading(here):
    name = str(here / "file")
    assert gfile.GFile(name).read() == "one\ntwo\nthree"
    assert gfile.FastGFile(name, "rb").read(5) == b"one\nt"
    assert gfile.Open(name).readlines() == ["one\n", "two\n", "three"]
    assert list(gfile.GFile(name, "rb")) == [b"one\n", b"two\n", b"three"]
    with gfile.GFile(name) as f:
        assert (f.name, f.mode, f.size(), f.seekable()) == (name, "r", 13, True)
        assert (next(f), f.next(), f.tell()) == ("one\n", "two\n", 8)
        assert (f.read(), f.readline(), f.read()) == ("three", "", "")
        f.seek(-2, whence=2)
        assert f.read() == "ee"
        f.seek(position=1)
        f.seek(1, 1)
        assert f.read(2) == "e\n"


def test_lines_of_windows_files(here):
    (here / "crlf").write_bytes(b"a\r\nb\r\n")
    assert gfile.GFile(here / "crlf").readlines() == ["a\n", "b\n"]


def test_writing(here):
    with gfile.GFile(here / "out", "w") as f:
        assert f.write("fluß") is None
        f.write(b"bytes")
        assert f.tell() == f.size() == 10
        f.flush()
        assert (here / "out").read_bytes() == "flußbytes".encode()
    with gfile.GFile(here / "out", "a") as f:
        f.write("more")
    assert gfile.GFile(here / "out").read() == "flußbytesmore"
    with gfile.GFile(here / "out", "wb") as f:
        f.write("text")
    assert gfile.GFile(here / "out", "rb").read() == b"text"


@pytest.mark.parametrize(("mode", "left"), [("r+", "ONE\ntwo\nthree"), ("w+", "ONE"), ("a+", "one\ntwo\nthreeONE")])
def test_reading_and_writing_one_file(here, mode, left):
    with gfile.GFile(here / "file", mode) as f:
        f.write("ONE")
        f.seek(0)
        assert f.read() == left


def test_a_closed_file_opens_again(here):
    f = gfile.GFile(here / "file")
    assert f.readline() == "one\n"
    f.close()
    f.close()
    assert f.readline() == "one\n"
    f.close()


def test_names_of_2x(here):
    files = tf.io.gfile
    assert files.exists(here) and files.isdir(here)
    files.makedirs(files.join(str(here), "x", "y"))
    files.mkdir(here / "z")
    files.copy(here / "file", here / "z" / "file")
    files.rename(here / "z" / "file", here / "z" / "moved")
    assert files.listdir(here / "z") == ["moved"]
    assert files.glob(f"{here}/z/*") == [f"{here}/z/moved"]
    assert files.stat(here / "z" / "moved").length == 13
    assert [top for top, _, _ in files.walk(here / "x", topdown=False)] == [f"{here}/x/y", f"{here}/x"]
    files.remove(here / "z" / "moved")
    files.rmtree(here / "x")
    assert not files.exists(here / "x")
    assert files.get_registered_schemes() == ["", "file"]
    assert files.GFile is gfile.GFile


def test_walk_reports_errors(here):
    seen = []
    assert list(tf.io.gfile.walk(here / "none", onerror=seen.append)) == []
    assert [type(error) for error in seen] == [tf.errors.NotFoundError]
