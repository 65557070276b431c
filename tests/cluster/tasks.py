"""The frame of programs that are one task of a cluster, as `Cluster` starts them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import penstock.v1 as tf


def run_task(work: Callable[[Any, dict[str, list[str]], str], None], **settings: type) -> None:
    """Serves as a parameter server, or calls `work(arguments, cluster, target)` as a worker.

    `settings` are the types of further arguments of the command line.
    """
    parser = argparse.ArgumentParser()
    for name, kind in {"cluster": json.loads, "folder": str, "job": str, "task": int, **settings}.items():
        parser.add_argument(f"--{name}", type=kind)  # type: ignore[arg-type]
    args = parser.parse_args()
    server = tf.train.Server(args.cluster, job_name=args.job, task_index=args.task)
    if args.job == "ps":
        print("serves", flush=True)
        server.join()
    work(args, args.cluster, server.target)
