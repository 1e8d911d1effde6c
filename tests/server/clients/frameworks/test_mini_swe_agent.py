"""mini-swe-agent: its loop of calls and results, over both of OpenAI's APIs."""

import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.models.litellm_response_model import LitellmResponseModel

from told import MODEL


class Shell:
    """An environment that notes the commands, which a tiny model makes up, and runs none."""

    def __init__(self):
        self.commands = []

    def execute(self, action, cwd=""):
        self.commands.append(action["command"])
        return {"output": "notes.txt\n", "returncode": 0, "exception_info": ""}

    def get_template_vars(self):
        return {}

    def serialize(self):
        return {}


@pytest.mark.parametrize("model", [LitellmModel, LitellmResponseModel])
def test_calls_and_their_results_go_on(model, openai_url):
    shell = Shell()
    asked = {"api_base": openai_url, "api_key": "none", "temperature": 0, "tool_choice": "required", "parallel_tool_calls": False}
    limit = "max_output_tokens" if model is LitellmResponseModel else "max_tokens"
    agent = DefaultAgent(model(model_name="openai/" + MODEL, model_kwargs=asked | {limit: 200}, cost_tracking="ignore_errors"),
                         shell, system_template="You use a computer.", instance_template="Please {{task}}.", step_limit=2)
    assert agent.run("list the files")["exit_status"] == "LimitsExceeded"
    assert len(shell.commands) >= 2
    assert agent.n_calls == 2
