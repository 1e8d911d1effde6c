import sys

import grpc
import grpc_tools
import openai
import pathlib
import pytest
from grpc_tools import protoc

from page_browser import CHROMIUM, SIZES, Page
from scripted_server import ScriptedServer
from tessera_server import ROOT, TesseraServer


@pytest.fixture(scope="session")
def server():
    with TesseraServer() as started:
        yield started
        started.signal()
        assert started.wait() == 0


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=server.http + "/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="session")
def wire(tmp_path_factory):
    """The modules that grpcio-tools generates from the proto: messages and stubs."""
    out = tmp_path_factory.mktemp("stubs")
    include = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    failed = protoc.main(
        ["protoc", f"-I{ROOT / 'proto'}", f"-I{include}", f"--python_out={out}",
         f"--grpc_python_out={out}", str(ROOT / "proto/tessera/v1/inference.proto")]
    )
    assert not failed
    sys.path.insert(0, str(out))
    from tessera.v1 import inference_pb2, inference_pb2_grpc

    return inference_pb2, inference_pb2_grpc


@pytest.fixture
def stub(server, wire):
    with grpc.insecure_channel(server.grpc) as channel:
        yield wire[1].InferenceStub(channel)


@pytest.fixture
def scripted(server):
    """The chat page before a server whose answers the test writes."""
    scripted = ScriptedServer(server.http)
    yield scripted
    scripted.close()


def opened(address, size):
    if not CHROMIUM.exists():
        pytest.skip("chromium is not installed (deploy/dependencies.sh tests)")
    return Page(address + "/", size)


@pytest.fixture(params=SIZES)
def page(request, scripted):
    """The page in a browser, before the scripted server, at each size."""
    page = opened(scripted.http, request.param)
    yield page
    errors = page.errors()
    page.close()
    assert not errors, errors


@pytest.fixture(params=SIZES)
def real_page(request, server):
    """The same before a real server."""
    page = opened(server.http, request.param)
    yield page
    errors = page.errors()
    page.close()
    assert not errors, errors
