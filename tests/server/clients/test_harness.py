"""lm-evaluation-harness with model `local-completions`, as users run it on such servers."""

import json
import math
import os
import subprocess
import sys

import httpx
import pytest

from tessera_server import MODEL, PATIENCE

pytestmark = pytest.mark.harness

NAMES = ["Ann", "Tom", "Ben", "Mia", "Sam", "Lucy"]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: {kind}
doc_to_text: "{{{{text}}}}"
target_delimiter: ""
doc_to_target: {target}
{more}
metric_list:
  - metric: acc
metadata:
  version: 1
"""


@pytest.fixture(scope="module")
def questions(server):
    """Returns prompts with the server's own greedy end and another one of as many words."""
    made = []
    for name in NAMES:
        text = f"One day, {name} went to the park with a red ball. {name} was"
        answer = httpx.post(server.http + "/v1/completions", timeout=PATIENCE, json={
            "prompt": text, "max_tokens": 12, "temperature": 0, "logprobs": 0}).json()
        greedy = answer["choices"][0]
        made.append({"text": text, "greedy": greedy["text"], "gold": 0,
                     "choices": [greedy["text"], " " + " ".join(["zebra"] * 9)],
                     "logprob": sum(greedy["logprobs"]["token_logprobs"])})
    return made


def evaluate(server, folder, questions, kind, **task):
    """Returns the harness' report: its metrics, and each request's answer."""
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in questions))
    (folder / "task.yaml").write_text(TASK.format(name="recall", data=data, kind=kind, **task))
    model = {"model": "tessera-tiny", "base_url": server.http + "/v1/completions",
             "tokenizer_backend": "huggingface", "tokenizer": str(MODEL),
             "tokenized_requests": "True", "add_bos_token": "True", "max_length": "2048",
             "num_concurrent": "4"}
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
               "HF_HOME": str(folder / "home")}
    done = subprocess.run(
        [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions",
         "--model_args", ",".join(f"{key}={value}" for key, value in model.items()),
         "--tasks", "recall", "--include_path", str(folder), "--output_path", str(folder / "out"),
         "--log_samples"],
        env=os.environ | offline, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=PATIENCE * 5)
    assert done.returncode == 0, done.stdout
    results = next((folder / "out").rglob("results_*.json"))
    samples = next((folder / "out").rglob("samples_*.jsonl"))
    return (json.loads(results.read_text())["results"]["recall"],
            [json.loads(line) for line in samples.read_text().splitlines()])


def test_a_choice_is_made_by_log_likelihood(server, questions, tmp_path):
    metrics, samples = evaluate(
        server, tmp_path, questions, "multiple_choice", target="gold",
        more='doc_to_choice: "choices"')
    assert metrics["acc,none"] == 1.0
    assert len(samples) == len(questions)
    for sample in samples:
        (greedy, is_greedy), (other, other_is_greedy) = [
            (float(value), str(flag) == "True") for value, flag in sample["filtered_resps"]]
        assert is_greedy and not other_is_greedy
        assert other < greedy < 0


def test_log_likelihoods_are_those_of_the_generation(server, questions, tmp_path):
    metrics, samples = evaluate(
        server, tmp_path, questions, "loglikelihood", target='"{{greedy}}"', more="")
    assert metrics["acc,none"] == 1.0, "each is greedy"
    for sample in samples:
        value, _ = sample["filtered_resps"][0]
        assert math.isclose(float(value), sample["doc"]["logprob"], rel_tol=1e-3, abs_tol=1e-3)
