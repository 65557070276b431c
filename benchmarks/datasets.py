"""Times input pipelines: elements per second of tf.data here, of TensorFlow's, and of Grain.

    python benchmarks/datasets.py [--tensorflow /path/to/python] [--grain /path/to/python] [--json]

Each pipeline runs for a second after a warm-up, three times; the median is shown. `threads` is the num_parallel_calls
of the map, in Grain the threads that read. The same functions make the pipelines for penstock and for TensorFlow. Those
run in processes of their own, in environments that have TensorFlow, or Grain and Pillow.
"""

from __future__ import annotations

import argparse
import importlib
import io
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

SECONDS, ROUNDS, WARM_UP = 1.0, 3, 20
BATCH, ROWS, RECORDS, PHOTOS = 100, 60_000, 10_000, 64
SIDE, TARGET = 96, 64  # of photos, before and after resizing
THREADS = (1, 2, 4)
Made = dict[str, Callable[[], Any]]


def digits() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.integers(0, 256, (ROWS, 28, 28), np.uint8), random.integers(0, 10, ROWS)


def photos() -> np.ndarray:
    """Smooth images, as photos are."""
    random = np.random.default_rng(0)
    coarse = random.integers(0, 256, (PHOTOS, 8, 8, 3), np.uint8)
    return coarse.repeat(SIDE // 8, 1).repeat(SIDE // 8, 2)


def write_records(tf: Any, path: str) -> None:
    """Examples with a label, ten numbers and up to five ids."""
    random = np.random.default_rng(0)
    with tf.io.TFRecordWriter(path) as writer:
        for i in range(RECORDS):
            example = tf.train.Example()
            feature = example.features.feature
            feature["label"].int64_list.value.append(i % 10)
            feature["numbers"].float_list.value.extend(random.uniform(size=10))
            feature["ids"].int64_list.value.extend(random.integers(0, 1000, random.integers(0, 6)))
            writer.write(example.SerializeToString())


def pipelines(tf: Any, folder: str) -> Made:
    """Endless datasets of batches, by name."""
    made = tf.data.Dataset
    pixels, labels = digits()
    files = [tf.io.encode_jpeg(photo).numpy() for photo in photos()]
    records = str(Path(folder) / "records")
    write_records(tf, records)
    features = {
        "label": tf.io.FixedLenFeature([], tf.int64),
        "numbers": tf.io.FixedLenFeature([10], tf.float32),
        "ids": tf.io.VarLenFeature(tf.int64),
    }

    def scaled(image: Any, label: Any) -> Any:
        image = tf.cast(image, tf.float32) / 255.0
        return tf.reshape((image - tf.reduce_mean(image)) * 2.0, [784]), label

    def decoded(file: Any) -> Any:
        return tf.image.resize(tf.io.decode_jpeg(file, channels=3), [TARGET, TARGET]) / 255.0

    found: Made = {
        "numbers: map, batch": lambda: made.range(10**9).map(lambda x: x * 2 + 1).batch(BATCH),
        "numbers: shuffle, batch": lambda: made.range(10**9).shuffle(10_000).batch(BATCH),
        "rows: shuffle, batch, prefetch": lambda: (
            made.from_tensor_slices((pixels, labels)).shuffle(ROWS).repeat().batch(BATCH).prefetch(2)
        ),
    }
    for threads in THREADS:
        found[f"rows: scale, batch; {threads} threads"] = lambda threads=threads: (
            made.from_tensor_slices((pixels, labels)).repeat().map(scaled, num_parallel_calls=threads).batch(BATCH)
        )
        found[f"records: batch, parse; {threads} threads"] = lambda threads=threads: (
            tf.data.TFRecordDataset(records)
            .repeat()
            .batch(BATCH)
            .map(lambda batch: tf.io.parse_example(batch, features), num_parallel_calls=threads)
        )
        found[f"JPEG: decode, resize, batch; {threads} threads"] = lambda threads=threads: (
            made.from_tensor_slices(files).repeat().map(decoded, num_parallel_calls=threads).batch(BATCH)
        )
    return dict(sorted(found.items()))


def grain_pipelines() -> Made:
    """The same by Grain, whose functions are Python's. It has no parser of examples."""
    from PIL import Image

    grain = importlib.import_module("grain.python")
    pixels, labels = digits()

    def as_jpeg(photo: np.ndarray) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(photo).save(buffer, "JPEG", quality=95)
        return buffer.getvalue()

    files = [as_jpeg(photo) for photo in photos()]

    def scaled(row: int) -> Any:
        image = pixels[row].astype(np.float32) / 255.0
        return ((image - image.mean()) * 2.0).reshape(784), labels[row]

    def decoded(number: int) -> Any:
        image = Image.open(io.BytesIO(files[number])).resize((TARGET, TARGET), Image.Resampling.BILINEAR)
        return np.asarray(image, np.float32) / 255.0

    def rows() -> Any:
        return grain.MapDataset.range(ROWS)

    found: Made = {
        "numbers: map, batch": lambda: grain.MapDataset.range(10**9).map(lambda x: x * 2 + 1).batch(BATCH),
        "numbers: shuffle, batch": lambda: grain.MapDataset.range(10**9).shuffle(seed=0).batch(BATCH),
        "rows: shuffle, batch, prefetch": lambda: (
            rows().shuffle(seed=0).repeat().map(lambda i: (pixels[i], labels[i])).batch(BATCH)
        ),
    }
    for threads in THREADS:
        options = grain.ReadOptions(threads, threads * 2)
        found[f"rows: scale, batch; {threads} threads"] = lambda options=options: (
            rows().repeat().map(scaled).batch(BATCH).to_iter_dataset(options)
        )
        found[f"JPEG: decode, resize, batch; {threads} threads"] = lambda options=options: (
            grain.MapDataset.range(PHOTOS).repeat().map(decoded).batch(BATCH).to_iter_dataset(options)
        )
    return found


def rate(dataset: Iterable[Any]) -> float:
    """The elements per second that a dataset of batches gives."""
    batches = iter(dataset)
    for _ in itertools.islice(batches, WARM_UP):
        pass
    found = []
    for _ in range(ROUNDS):
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < SECONDS:
            next(batches)
            count += BATCH
        found.append(count / (time.perf_counter() - start))
    return statistics.median(found)


def measured(library: str) -> dict[str, float]:
    """The rates of all pipelines of a library, by name."""
    with tempfile.TemporaryDirectory() as folder:
        made = grain_pipelines() if library == "grain" else pipelines(importlib.import_module(library), folder)
        return {name: rate(make()) for name, make in made.items()}


def show(columns: dict[str, dict[str, float]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("thousand elements per second", *columns)
    for name in next(iter(columns.values())):
        figures = [found.get(name) for found in columns.values()]
        table.add_row(name, *("" if f is None else f"{f / 1000:,.1f}" for f in figures))
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensorflow", help="a Python that has TensorFlow")
    parser.add_argument("--grain", help="a Python that has Grain and Pillow")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", help="times the pipelines of this library in this process, as JSON")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measured(options.only)))
        return
    pythons = {"penstock": sys.executable, "tensorflow": options.tensorflow, "grain": options.grain}
    columns = {}
    for library, python in pythons.items():
        if python:
            command = [python, __file__, "--only", library]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            columns[library] = json.loads(output.splitlines()[-1])
    if options.json:
        print(json.dumps(columns))
    else:
        show(columns)


if __name__ == "__main__":
    main()
