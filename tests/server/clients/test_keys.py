"""API keys and TLS on both front ends."""

import ssl
import subprocess

import grpc
import httpx
import openai
import pytest

from tessera_server import PATIENCE, TesseraServer, eventually

KEY = "key-of-the-team"


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    (folder / "keys.txt").write_text(f"# two\n{KEY}\nanother\n")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(folder / "key.pem"),
         "-out", str(folder / "cert.pem")],
        check=True, capture_output=True)
    flags = ("--api-key-file", str(folder / "keys.txt"), "--tls-cert", str(folder / "cert.pem"),
             "--tls-key", str(folder / "key.pem"), "--api-key", "on-the-command-line")
    with TesseraServer(*flags) as server:
        server.certificate = folder / "cert.pem"
        yield server
        server.signal()
        assert server.wait() == 0


@pytest.fixture
def https(locked):
    with httpx.Client(base_url=locked.http, verify=ssl.create_default_context(cafile=locked.certificate)) as client:
        yield client


def test_only_health_and_metrics_are_open(locked, https):
    assert locked.http.startswith("https://")
    assert https.get("/health").status_code == 200
    assert https.get("/metrics").status_code == 200
    for path in ("/", "/version", "/v1/models", "/nothing"):
        assert https.get(path).status_code == 401, path
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        assert https.post(path, json={}).status_code == 401, path
    for key in (KEY, "another", "on-the-command-line"):
        authorized = https.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
        assert authorized.status_code == 200


def test_a_browser_is_asked_at_the_page(https):
    challenge = https.get("/").headers["www-authenticate"]
    assert challenge.startswith("Basic ")
    page = https.get("/", auth=("anybody", KEY))
    assert page.status_code == 200 and "<html" in page.text


def test_the_openai_client_says_what_is_wrong(locked):
    def client(key):
        return openai.OpenAI(base_url=locked.http + "/v1", api_key=key, max_retries=0,
                             http_client=httpx.Client(verify=ssl.create_default_context(cafile=locked.certificate)))

    assert client(KEY).models.list().data[0].id == "tessera-tiny"
    with pytest.raises(openai.AuthenticationError) as error:
        client("wrong").models.list()
    assert error.value.code == "invalid_api_key"


def test_grpc_wants_the_same_over_the_same_certificate(locked, wire):
    credentials = grpc.ssl_channel_credentials(locked.certificate.read_bytes())
    with grpc.secure_channel(locked.grpc, credentials) as channel:
        stub = wire[1].InferenceStub(channel)
        request = wire[0].GenerateRequest(text="Once", max_tokens=2)
        right = (("authorization", f"Bearer {KEY}"),)
        assert list(stub.Generate(request, metadata=right, timeout=PATIENCE))
        with pytest.raises(grpc.RpcError) as error:
            list(stub.Generate(request, timeout=PATIENCE))
        assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.RpcError) as error:
            stub.GetModelInfo(wire[0].GetModelInfoRequest(), timeout=PATIENCE)
        assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_no_key_is_in_the_log(locked):
    eventually(lambda: locked.logged("tessera-server .*api-key"), "the settings are logged")
    for key in (KEY, "another", "on-the-command-line"):
        assert not locked.logged(key)


def test_a_server_without_a_key_in_its_file_does_not_start(tmp_path):
    (tmp_path / "keys.txt").write_text("# later\n")
    with pytest.raises(AssertionError, match="has no key"):
        TesseraServer("--api-key-file", str(tmp_path / "keys.txt"))
