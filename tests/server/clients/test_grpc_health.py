"""grpc.health.v1 with the official client, as grpc_health_probe calls it."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tessera_server import PATIENCE, TesseraServer, eventually

Status = health_pb2.HealthCheckResponse


@pytest.fixture
def health(server):
    with grpc.insecure_channel(server.grpc) as channel:
        yield health_pb2_grpc.HealthStub(channel)


@pytest.mark.parametrize("service", ["", "tessera.v1.Inference"])
def test_serves(health, service):
    asked = health_pb2.HealthCheckRequest(service=service)
    assert health.Check(asked, timeout=PATIENCE).status == Status.SERVING


def test_a_service_nobody_knows(health):
    with pytest.raises(grpc.RpcError) as error:
        health.Check(health_pb2.HealthCheckRequest(service="no.such.Service"), timeout=PATIENCE)
    assert error.value.code() == grpc.StatusCode.NOT_FOUND


def test_lists_every_service(health):
    listed = health.List(health_pb2.HealthListRequest(), timeout=PATIENCE).statuses
    assert {name: status.status for name, status in listed.items()} == {
        "": Status.SERVING, "tessera.v1.Inference": Status.SERVING}


def test_a_watcher_sees_the_server_drain():
    with TesseraServer("--drain-delay", "60s") as server:
        with grpc.insecure_channel(server.grpc) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert next(watch).status == Status.SERVING
            server.signal()
            assert next(watch).status == Status.NOT_SERVING
            watch.cancel()
        eventually(lambda: server.logged("draining|stops|SIGTERM|not ready"), "the log says so")
        server.signal()
        assert server.wait() == 0
