"""Bundles are TensorFlow's byte by byte; damage is detected; a failed file operation keeps the last good one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from golden_programs import GOLDEN

from penstock.checkpoint import bundle, files, table
from penstock.checkpoint.bundle import BundleReader, BundleWriter
from penstock.checkpoint.slices import Slice
from penstock.errors import DataLossError, NotFoundError, OpError, ResourceExhaustedError

FOLDER = GOLDEN / "checkpoints"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
PREFIXES = list(EXPECTED["checkpoints"])
VALUES = np.load(FOLDER / "expected.npz")


def _value(row: dict[str, Any]) -> np.ndarray:
    if "strings" in row:
        flat = np.array([*(s.encode("latin-1") for s in row["strings"]), None], object)[:-1]
        return flat.reshape(row["shape"])
    array = VALUES[row["key"]]
    return array.view(ml_dtypes.bfloat16) if row["dtype"] == "bfloat16" else array


def _same(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    if wanted.dtype == object:
        assert found.tolist() == wanted.tolist()
    else:
        assert found.tobytes() == np.ascontiguousarray(wanted).tobytes()


@pytest.mark.parametrize("prefix", PREFIXES)
def test_reads_what_tensorflow_wrote(prefix: str) -> None:
    reader = BundleReader(str(FOLDER / prefix))
    golden = EXPECTED["checkpoints"][prefix]
    assert reader.num_shards == golden["header"]["num_shards"]
    for row in golden["entries"]:
        entry = reader.entries[bytes.fromhex(row["key_hex"]) if "key_hex" in row else row["key"].encode()]
        assert (entry.shard_id, entry.offset, entry.size) == (row["shard_id"], row["offset"], row["size"])
        assert entry.crc32c == row["crc32c_masked"]
    for name, row in golden["variables"].items():
        assert reader.dtype(name).name == row["dtype"] and list(reader.shape(name)) == row["shape"]
        _same(reader.read(name), _value(row))


@pytest.mark.parametrize("prefix", [p for p in PREFIXES if EXPECTED["checkpoints"][p]["header"]["num_shards"] == 1])
def test_writes_what_tensorflow_writes(prefix: str, tmp_path: Path) -> None:
    original = BundleReader(str(FOLDER / prefix))
    placed = sorted((e for e in original.entries.items() if not e[1].slices), key=lambda e: (e[1].offset, e[1].size))
    parts = {
        Slice.from_proto(s, original.shape(name)).key(name): (name, Slice.from_proto(s, original.shape(name)))
        for name in original.names()
        for s in original.entry(name).slices
    }
    with BundleWriter(str(tmp_path / "m")) as writer:
        for key, _ in placed:
            if key in parts:
                name, part = parts[key]
                writer.add_slice(name, original.shape(name), part, original.read_slice(name, part))
            else:
                writer.add(key.decode(), original.read(key.decode()))
    for ending in ("index", "data-00000-of-00001"):
        assert (tmp_path / f"m.{ending}").read_bytes() == (FOLDER / f"{prefix}.{ending}").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["m.data-00000-of-00001", "m.index"]


def test_parts_are_read_in_other_parts() -> None:
    reader = BundleReader(str(FOLDER / "partitioned/model.ckpt-1"))
    whole = reader.read("p/emb")
    for start, length in ((0, 7), (7, 6), (2, 1), (3, 0)):
        _same(reader.read_slice("p/emb", Slice((start, 0), (length, 2))), whole[start : start + length])


def test_merging_shards(tmp_path: Path) -> None:
    for i in range(2):
        with BundleWriter(str(tmp_path / f"temp/part-{i}")) as writer:
            writer.add(f"v{i}", np.full(3, i, np.int64))
            writer.add_slice("p", (4, 2), Slice((2 * i, 0), (2, 2)), np.full((2, 2), i, np.float32))
    bundle.merge([str(tmp_path / f"temp/part-{i}") for i in range(2)], str(tmp_path / "m"))
    assert sorted(os.listdir(tmp_path)) == ["m.data-00000-of-00002", "m.data-00001-of-00002", "m.index"]
    reader = BundleReader(str(tmp_path / "m"))
    assert reader.names() == ["p", "v0", "v1"]
    assert reader.read("p")[:, 0].tolist() == [0, 0, 1, 1] and reader.read("v1").tolist() == [1, 1, 1]


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("same_name", [False, True])
def test_no_failure_loses_the_last_good_one(tmp_path: Path, monkeypatch: Any, sharded: bool, same_name: bool) -> None:
    def save(prefix: str, value: int) -> None:
        pieces = [f"{prefix}_temp/part-{i}" for i in range(2)] if sharded else [prefix]
        for i, piece in enumerate(pieces):
            with BundleWriter(piece) as writer:
                writer.add(f"v{i}", np.full(1000, value, np.float32))
        if sharded:
            bundle.merge(pieces, prefix)

    good, new = str(tmp_path / "m-1"), str(tmp_path / ("m-1" if same_name else "m-2"))
    save(good, 1)
    operations = ["create", "write", "finish", "rename", "remove", "sync_directory"]
    real = {name: getattr(files, name) for name in operations}
    for fail_at in range(100):
        left = iter(range(fail_at))

        def until_it_is_gone(real: Any, left: Any = left) -> Any:
            def call(*args: Any) -> Any:
                if next(left, None) is None:
                    raise KeyboardInterrupt
                return real(*args)

            return call

        with monkeypatch.context() as patch:
            for name in operations:
                patch.setattr(files, name, until_it_is_gone(real[name]))
            try:
                save(new, 2 + fail_at)
                break
            except KeyboardInterrupt:
                pass
        before = BundleReader(good)
        values = {name: set(before.read(name).tolist()) for name in before.names()}
        assert all(len(v) == 1 for v in values.values()) and len(set(map(frozenset, values.values()))) == 1
    else:
        raise AssertionError("the save never came through")
    assert fail_at > 5
    assert set(BundleReader(new).read("v0").tolist()) == {2.0 + fail_at}


@pytest.mark.parametrize("ending", ["index", "data-00000-of-00001"])
def test_damage_is_seen(tmp_path: Path, ending: str) -> None:
    source = FOLDER / "dtypes_ref/model.ckpt-10"
    size = (FOLDER / f"{source}.{ending}").stat().st_size
    for damage in ["cut", *np.linspace(0, size - 1, 40, dtype=int)]:
        for each in ("index", "data-00000-of-00001"):
            shutil.copy(f"{source}.{each}", tmp_path / f"m.{each}")
        path = tmp_path / f"m.{ending}"
        data = bytearray(path.read_bytes())
        if damage == "cut":
            data = data[: size // 2]
        else:
            data[damage] ^= 0x10
        path.write_bytes(data)
        try:
            reader = BundleReader(str(tmp_path / "m"))
            found = {name: reader.read(name) for name in reader.names()}
        except DataLossError as error:
            assert str(tmp_path / "m") in error.message
        else:
            # Bytes that no checksum covers are padding: they must not change what is read.
            original = BundleReader(str(source))
            assert damage != "cut" and found.keys() == set(original.names())
            for name, value in found.items():
                _same(value, original.read(name))


def test_what_is_missing_or_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="Failed to find any matching files"):
        BundleReader(str(tmp_path / "none"))
    with BundleWriter(str(tmp_path / "m")) as writer:
        writer.add("v", np.ones(3, np.float32))
    with pytest.raises(NotFoundError, match="Key w not found in checkpoint"):
        BundleReader(str(tmp_path / "m")).read("w")
    os.remove(tmp_path / "m.data-00000-of-00001")
    with pytest.raises(DataLossError, match=r"m\.data-00000-of-00001', which holds 'v', is missing"):
        BundleReader(str(tmp_path / "m")).read("v")
    (tmp_path / "file").write_text("")
    with pytest.raises(OpError, match="file"):
        BundleWriter(str(tmp_path / "file" / "m"))


def test_a_full_disk(tmp_path: Path, monkeypatch: Any) -> None:
    writer = BundleWriter(str(tmp_path / "m"))

    class Full:
        name = str(tmp_path / "m")

        def write(self, data: Any) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(ResourceExhaustedError, match="Free some space"):
        files.write(Full(), b"x")  # type: ignore[arg-type]
    writer.discard()
    assert os.listdir(tmp_path) == []


def test_tables_of_all_sizes() -> None:
    for count in (0, 1, 15, 16, 17, 5000):
        entries = {f"key{i:05d}".encode(): os.urandom(i % 90) for i in range(count)}
        assert table.decode(table.encode(sorted(entries.items())), "x") == entries
