"""A provider of nodes for Ray's autoscaler, which imports it: nodes of this machine, each with a loopback address."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import (
    NODE_KIND_HEAD,
    STATUS_UP_TO_DATE,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_STATUS,
    TAG_RAY_USER_NODE_TYPE,
)

FIRST = 10  # the last number of the first address


class Nodes(NodeProvider):
    """Starts and ends nodes by `ray start --block`. A node's id is its address."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        kind = {TAG_RAY_NODE_KIND: NODE_KIND_HEAD, TAG_RAY_USER_NODE_TYPE: "head"}
        head = {**kind, TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE}
        self._tags: dict[str, dict[str, str]] = {provider_config["head"]: head}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._next = FIRST

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        return [node for node, tags in self._tags.items() if tag_filters.items() <= tags.items()]

    def is_running(self, node_id: str) -> bool:
        return node_id in self._tags

    def is_terminated(self, node_id: str) -> bool:
        return node_id not in self._tags

    def node_tags(self, node_id: str) -> dict[str, str]:
        return self._tags[node_id]

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        self._tags[node_id].update(tags)

    def internal_ip(self, node_id: str) -> str:
        return node_id

    external_ip = internal_ip

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> None:
        for _ in range(count):
            host, self._next = f"127.0.0.{self._next}", self._next + 1
            command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--node-ip-address={host}"]
            command += [f"--address={self.provider_config['address']}", "--num-cpus=2", "--disable-usage-stats"]
            about = {"RAY_CLOUD_INSTANCE_ID": host, "RAY_NODE_TYPE_NAME": tags[TAG_RAY_USER_NODE_TYPE]}
            self._processes[host] = subprocess.Popen(
                [*command, "--object-store-memory=100000000"], env={**os.environ, **about}, stdin=subprocess.DEVNULL
            )
            self._tags[host] = {**tags, TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE}

    def terminate_node(self, node_id: str) -> None:
        del self._tags[node_id]
        process = self._processes.pop(node_id)
        process.terminate()  # it ends all that it has started
        process.wait(30)
