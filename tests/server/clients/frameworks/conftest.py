import os

import pytest

from tessera_server import TesseraServer

# LiteLLM otherwise asks the Internet for prices at its import, for half a minute where there is none.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"


@pytest.fixture(scope="session")
def server():
    with TesseraServer() as started:
        yield started
        started.signal()
        assert started.wait() == 0


@pytest.fixture
def openai_url(server):
    return server.http + "/v1"
