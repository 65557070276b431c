"""Writes the timings of a step as RunMetadata and as a Chrome trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tensorboard.compat.proto import config_pb2

Timing = tuple[str, str, str, float, float]  # device, node, label, start and end in seconds


def fill_run_metadata(run_metadata: Any, timings: Sequence[Timing]) -> None:
    """Writes the timings of a step into `run_metadata.step_stats`, one DeviceStepStats per device."""
    devices: dict[str, Any] = {}
    for device, name, label, start, end in timings:
        stats = devices.get(device)
        if stats is None:
            stats = devices[device] = run_metadata.step_stats.dev_stats.add(device=device)
        node = stats.node_stats.add(
            node_name=name,
            timeline_label=label,
            all_start_micros=int(start * 1e6),
            op_end_rel_micros=int((end - start) * 1e6),
            all_end_rel_micros=int((end - start) * 1e6),
        )
        node.thread_id = 0


class Timeline:
    """Turns `run_metadata.step_stats` into a trace for chrome://tracing or Perfetto.

    >>> timeline.Timeline(run_metadata.step_stats).generate_chrome_trace_format()
    """

    def __init__(self, step_stats: Any, graph: Any = None) -> None:
        self._step_stats = step_stats

    def generate_chrome_trace_format(
        self, show_dataflow: bool = True, show_memory: bool = False, op_time: str = "schedule"
    ) -> str:
        """Returns the trace as JSON text."""
        events: list[dict[str, Any]] = []
        for pid, device in enumerate(self._step_stats.dev_stats):
            events.append({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": f"{device.device} Compute"}})
            for node in device.node_stats:
                operation = node.timeline_label.partition(" = ")[2].partition("(")[0] or node.node_name
                events.append(
                    {
                        "name": operation,
                        "cat": "Op",
                        "ph": "X",
                        "pid": pid,
                        "tid": int(node.thread_id),
                        "ts": int(node.all_start_micros),
                        "dur": int(node.all_end_rel_micros),
                        "args": {"name": node.node_name, "op": operation, "label": node.timeline_label},
                    }
                )
        return json.dumps({"traceEvents": events}, indent=1)


def encoded(timings: Sequence[Timing]) -> bytes:
    """Returns timings as bytes, to send them to the requester of the step."""
    metadata = config_pb2.RunMetadata()
    fill_run_metadata(metadata, timings)
    data: bytes = metadata.SerializeToString()
    return data


def merge_encoded(run_metadata: Any, data: bytes) -> None:
    """Adds the result of `encoded` to `run_metadata`."""
    run_metadata.MergeFrom(config_pb2.RunMetadata.FromString(data))
