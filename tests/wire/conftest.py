"""Common fixtures of the wire's tests: a server in this process, and the credentials of two jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.server import Server
from penstock.wire.credentials import Credentials, create_credentials


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    return create_credentials(tmp_path_factory.mktemp("job") / "a")


@pytest.fixture(scope="module")
def other_job(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    return create_credentials(tmp_path_factory.mktemp("job") / "b")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server({"ps": ["127.0.0.1:0"]}) as running:
        yield running
