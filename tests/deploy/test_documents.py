"""The commands of the documents, as far as they go without a cluster."""

import re
import shlex
import subprocess

import pytest
import yaml

from chart import HELM, ROOT, SERVER

TEXT = (ROOT / "docs/howto/kubernetes.md").read_text()
COMMANDS = [line for block in re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
            for line in block.replace("\\\n", " ").splitlines()]


def test_the_helm_commands_render():
    installs = [shlex.split(line)[3:] for line in COMMANDS if line.startswith("helm upgrade --install ")]
    assert len(installs) >= 4
    for arguments in installs:
        done = subprocess.run([HELM, "template", *arguments], cwd=ROOT, text=True, capture_output=True,
                              check=False)
        assert done.returncode == 0, done.stderr


def test_names_in_kubectl_commands_are_those_of_the_chart():
    done = subprocess.run([HELM, "template", "chat", ROOT / "deploy/helm/tessera", "--set", "load.enabled=true"],
                          text=True, capture_output=True, check=True)
    made = {(thing["kind"].lower(), thing["metadata"]["name"])
            for thing in yaml.safe_load_all(done.stdout) if thing}
    named = re.findall(r"\b(service|deployment|job)/([a-z-]+)", TEXT)
    assert {kind for kind, _ in named} == {"service", "job"}
    assert set(named) <= made


def test_the_plan_is_what_the_server_prints():
    (command,) = [line for line in COMMANDS if " --plan " in line]
    _, *arguments = shlex.split(command)
    printed = subprocess.run([SERVER, *arguments, "--threads", "4"], cwd=ROOT, text=True, capture_output=True,
                             check=True).stdout
    written = re.search(r"^```\n(\d+ sequences.*?)^```", TEXT, re.MULTILINE | re.DOTALL)[1]
    lines = dict(zip(written.splitlines(), printed.splitlines()))
    assert len(lines) == 9
    for line, expected in lines.items():
        assert re.sub(r"\d+", "", line) == re.sub(r"\d+", "", expected)
        # The scratch memory of ops differs among instruction sets.
        assert list(map(int, re.findall(r"\b\d+\b", line))) == pytest.approx(
            list(map(int, re.findall(r"\b\d+\b", expected))), rel=0.01), line


def test_the_adapter_serves_the_metrics_that_the_autoscaler_asks_for():
    block = re.search(r"^```yaml\n(rules:.*?)^```", TEXT, re.MULTILINE | re.DOTALL)[1]
    served = {rule["name"]["as"] for rule in yaml.safe_load(block)["rules"]}
    values = yaml.safe_load((ROOT / "deploy/helm/tessera/values.yaml").read_text())["autoscaling"]
    assert served == {values["waitingMetric"], values["kvMetric"]}


@pytest.mark.parametrize("file", sorted((ROOT / "deploy/helm/tessera/values").glob("*.yaml")), ids=lambda file: file.name)
def test_the_table_names_what_each_file_of_values_needs(file):
    values = yaml.safe_load(file.read_text())
    (row,) = [line for line in TEXT.splitlines() if line.startswith(f"| `{file.name}` |")]
    needed = [values.get(part, {}).get(name) for part, name in (
        ("checkpoints", "claim"), ("apiKeys", "secret"), ("tls", "secret"), ("tenants", "secret"),
        ("download", "tokenSecret"))]
    assert [name for name in needed if name and f"`{name}`" not in row] == []
