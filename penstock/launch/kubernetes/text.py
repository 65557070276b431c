"""Manifests as YAML, for people and for `kubectl apply -f -`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.launch.cluster import LaunchError
from penstock.launch.kubernetes.manifests import Manifest


def as_yaml(manifests: Iterable[Manifest]) -> str:
    """The documents, with texts of several lines as they are."""
    try:
        import yaml  # optional
    except ImportError:
        raise missing_package() from None

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return str(yaml.dump_all(manifests, Dumper=Dumper, sort_keys=False, width=1000, explicit_start=True))


def missing_package() -> LaunchError:
    """The error without the extra `kubernetes`."""
    return LaunchError(
        "--on kubernetes needs the package kubernetes, which is not installed here. "
        "Install it: pip install 'penstock[kubernetes]'."
    )
