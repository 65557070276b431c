"""The probe of a pod: `python -m penstock.launch.kubernetes.probe PORT` asks the task there if it serves.

It asks gRPC's health service for the control service, with the job's credentials, and exits with 0 if that serves.
"""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.wire.control import SERVICE
from penstock.wire.credentials import Credentials

_SECS = 8.0  # less than the time that a manifest gives to this program


def problem(address: str) -> str:
    """Asks the task at an address; "" if it serves, else why not."""
    credentials = Credentials.from_environment()
    metadata = None
    if credentials is None:
        channel = grpc.insecure_channel(address)
    else:
        options = [*credentials.grpc_channel_options(), ("grpc.enable_http_proxy", 0)]
        channel = grpc.secure_channel(address, credentials.grpc_channel_credentials(), options)
        metadata = credentials.grpc_metadata()
    request = health_pb2.HealthCheckRequest(service=SERVICE)
    try:
        with channel:
            reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=_SECS, metadata=metadata)
    except grpc.RpcError as error:
        return f"{address}: {error.code().name}: {error.details()}"
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
    return "" if status == "SERVING" else f"{address}: {SERVICE} is {status}"


if __name__ == "__main__":
    sys.exit(problem(f"127.0.0.1:{sys.argv[1]}") or 0)
