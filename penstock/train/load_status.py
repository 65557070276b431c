"""The result of reading a checkpoint into objects: it tells what did not match."""

from __future__ import annotations

from typing import Any

from penstock.train.object_graph import ObjectGraph, has_values
from penstock.train.restoration import Restoration


class LoadStatus:
    """The base of all results. In eager execution everything that can be restored has been when it is returned."""

    def assert_consumed(self) -> LoadStatus:
        """Raises AssertionError unless all of the checkpoint and all of the objects were matched."""
        raise NotImplementedError

    def assert_existing_objects_matched(self) -> LoadStatus:
        """Raises AssertionError unless every object of the program that has values was matched."""
        raise NotImplementedError

    def assert_nontrivial_match(self) -> LoadStatus:
        """Raises AssertionError unless something besides the root was matched."""
        raise NotImplementedError

    def run_restore_ops(self, session: Any = None) -> None:
        """Does nothing: values are restored already."""

    def initialize_or_restore(self, session: Any = None) -> None:
        """Does nothing: variables have values, and these are restored already."""

    def expect_partial(self) -> LoadStatus:
        """Says that not all of the checkpoint will be used."""
        return self


class CheckpointLoadStatus(LoadStatus):
    """The result of reading a checkpoint of objects.

    >>> checkpoint.read(path).assert_consumed()
    """

    def __init__(self, restoration: Restoration, checkpoint: Any) -> None:
        self._restoration = restoration
        self._checkpoint = checkpoint

    def assert_consumed(self) -> CheckpointLoadStatus:
        """Raises AssertionError unless all of the checkpoint and all of the objects were matched."""
        restoration = self._restoration
        for number, node in enumerate(restoration.graph.nodes):
            if node.attributes and not restoration.is_bound(number):
                text = str(node.attributes[0]).strip()
                raise AssertionError(
                    f"Unresolved object in checkpoint {_path(restoration.graph, number)}: attributes {{\n{text}\n}}"
                )
        if restoration.unused_attributes:
            unused = {_path(restoration.graph, i): names for i, names in restoration.unused_attributes.items()}
            raise AssertionError(f"Some objects had attributes which were not restored: {unused}.")
        unmatched = self._unmatched()
        if unmatched:
            raise AssertionError(
                "Some Python objects were not bound to checkpointed values, likely due to changes in the Python "
                f"program: {unmatched[:10]!r}"
            )
        return self

    def assert_existing_objects_matched(self) -> CheckpointLoadStatus:
        """Raises AssertionError unless every object of the program that has values was matched."""
        unmatched = self._unmatched()
        if unmatched:
            shown = unmatched[:10]
            raise AssertionError(
                f"Found {len(unmatched)} Python objects that were not bound to checkpointed values, likely due to "
                f"changes in the Python program. Showing {len(shown)} of {len(unmatched)} unmatched objects: {shown!r}"
            )
        return self

    def assert_nontrivial_match(self) -> CheckpointLoadStatus:
        """Raises AssertionError unless something besides the root was matched."""
        if len(self._restoration.bound_objects) <= 1:
            others = [node.value for node in self._graph().nodes[1:]]
            raise AssertionError(
                f"Nothing except the root object matched a checkpointed value. Typically this means that the "
                f"checkpoint does not match the Python program. The following objects have no matching checkpointed "
                f"value: {others[:10]!r}"
                if others
                else "Nothing to load: the root holds no objects yet."
            )
        return self

    def _graph(self) -> ObjectGraph:
        graph: ObjectGraph = self._checkpoint._object_graph()
        return graph

    def _unmatched(self) -> list[Any]:
        bound = {id(value) for value in self._restoration.bound_objects}
        values = [node.value for node in self._graph().nodes if has_values(node.value)]
        return [value for value in values if id(value) not in bound]


class InitializationOnlyStatus(LoadStatus):
    """The result of `restore(None)`: nothing was read."""

    def assert_consumed(self) -> LoadStatus:
        raise AssertionError("No checkpoint specified (save_path=None); nothing is being restored.")

    assert_existing_objects_matched = assert_consumed
    assert_nontrivial_match = assert_consumed


class NameBasedSaverStatus(LoadStatus):
    """The result of reading a checkpoint of a Saver, which goes by the names of variables."""

    def __init__(self, missing: list[Any], unused: list[str]) -> None:
        self._missing = missing
        self._unused = unused

    def assert_consumed(self) -> LoadStatus:
        if self._missing or self._unused:
            raise AssertionError(
                f"The checkpoint goes by names. Objects without a value in it: {self._missing!r}; values in it that "
                f"no object has: {self._unused!r}."
            )
        return self

    def assert_existing_objects_matched(self) -> LoadStatus:
        if self._missing:
            raise AssertionError(f"The checkpoint has no values, by names, for {self._missing!r}.")
        return self

    def assert_nontrivial_match(self) -> LoadStatus:
        return self


def _path(graph: Any, number: int) -> str:
    """The path from the root to an object: `(root).model.kernel`."""
    paths = {0: "(root)"}
    waiting = [0]
    while waiting:
        current = waiting.pop(0)
        for child in graph.nodes[current].children:
            if child.node_id not in paths:
                paths[child.node_id] = f"{paths[current]}.{child.local_name}"
                waiting.append(child.node_id)
    return paths.get(number, f"(slot {number})")
