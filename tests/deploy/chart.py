"""The Helm chart, rendered, and its objects checked without a cluster."""

import copy
import functools
import json
import os
import pathlib
import subprocess

import kubernetes_validate
import yaml
from kubernetes_validate import utils

import custom_resources

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/tessera"
VALUES = sorted((CHART / "values").glob("*.yaml"))
HELM = os.environ["HELM"]
SERVER = pathlib.Path(os.environ["TESSERA_PROGRAMS"]) / "tessera-server"

# Each validation would parse the definitions of its version again: 0.3 s.
utils.schema_contents = functools.lru_cache(maxsize=64)(utils.schema_contents)


def helm(*arguments, values=None):
    """Runs helm with values from standard input. Returns the finished process."""
    given = [] if values is None else ["--values", "-"]
    return subprocess.run([HELM, *arguments, *given], text=True, capture_output=True, check=False,
                          input=None if values is None else yaml.safe_dump(values))


@functools.lru_cache(maxsize=64)
def template(given, *arguments):
    """Returns the objects of `helm template` for values in JSON. Many tests look at the same objects."""
    done = helm("template", "release", str(CHART), "--namespace", "space", *arguments,
                values=json.loads(given))
    assert done.returncode == 0, done.stderr
    return done.stdout


def render_text(values=None, *arguments):
    """Returns the objects of `helm template` for these values, a mapping."""
    return template(json.dumps(values or {}), *arguments)


def render(values=None, *arguments):
    """Returns the objects that `helm template` makes of these values."""
    text = render_text(values, *arguments)
    return [thing for thing in yaml.load_all(text, yaml.CSafeLoader) if thing]


def refusal(values):
    """Returns the message that helm refuses these values with."""
    done = helm("template", "release", str(CHART), values=values)
    assert done.returncode != 0, "was not refused"
    return done.stderr


def only(objects, kind, name=None):
    """Returns the one object of this kind (and name)."""
    found = [thing for thing in objects if thing["kind"] == kind
             and name in (None, thing["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} objects of kind {kind}"
    return found[0]


def pod_templates(objects):
    """Returns the templates of all pods, with the labels that controllers add."""
    templates = []
    for thing in objects:
        if thing["kind"] in ("Deployment", "StatefulSet", "Job"):
            templates.append(thing["spec"]["template"])
        elif thing["kind"] == "LeaderWorkerSet":
            group = thing["spec"]["leaderWorkerTemplate"]
            for index, role in ((0, "leaderTemplate"), (1, "workerTemplate")):
                template = copy.deepcopy(group[role])
                template["metadata"]["labels"][
                    "leaderworkerset.sigs.k8s.io/worker-index"] = str(index)
                templates.append(template)
    return templates


def validate(thing, version):
    """Checks an object strictly by its schema in this Kubernetes version, or by ours for a CRD."""
    if thing["kind"] in custom_resources.SCHEMAS:
        custom_resources.validate(thing)
        for template in pod_templates([thing]):
            labels = template["metadata"]["labels"]
            kubernetes_validate.validate(
                {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "pod"},
                 "spec": {"selector": {"matchLabels": labels}, "template": template}},
                version, strict=True)
    else:
        kubernetes_validate.validate(thing, version, strict=True)


def server_settings(objects):
    """Returns the server's settings in the chart's ConfigMap, and their text."""
    text = next(thing for thing in objects if thing["kind"] == "ConfigMap"
                and "tessera.yaml" in thing["data"])["data"]["tessera.yaml"]
    return yaml.safe_load(text), text
