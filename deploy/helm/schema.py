#!/usr/bin/env python3
"""Writes deploy/helm/tessera/values.schema.json, which helm checks every value with.

    schema.py           writes it
    schema.py --check   exits with 1 if it is not current

`settings` comes from configs/default.yaml, which the settings table of the server prints; all other
values from values.yaml, where a default gives the type, and from CONSTRAINTS below. Needs PyYAML.
"""

import json
import pathlib
import re
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/tessera"
SCHEMA = CHART / "values.schema.json"

# Settings that the chart writes, and the value that decides each.
DERIVED = {
    "api-key": "apiKeys",
    "api-key-file": "apiKeys",
    "tenants": "tenants",
    "tls-cert": "tls",
    "tls-key": "tls",
    "tensor-parallel": "ranks",
    "kv-events": "kvEvents",
    "kv-events-topic": "kvEvents",
}

# Forms of a setting's value, by the name of its kind in --help.
KINDS = {
    "PORT": {"type": "integer", "minimum": 1, "maximum": 65535},  # 0, any port, has no service
    "COUNT": {"type": "integer", "minimum": 0},
    "TOKENS": {"type": "integer", "minimum": 0},
    "NUMBER": {"type": "integer"},
    "BYTES": {"type": ["string", "integer"], "pattern": "^[0-9]+(B|KiB|MiB|GiB|TiB)?$"},
    "SHARE": {"type": ["string", "number"], "minimum": 0.1, "maximum": 1},
    "TIME": {"type": ["string", "integer"], "pattern": "^[0-9]+(ms|s|m)?$"},
}

QUANTITY = {"type": "string", "pattern": "^[0-9.]+([EPTGMK]i?|m)?$"}
POSITIVE = {"type": "integer", "minimum": 1}
CONSTRAINTS = {
    "workload": {"enum": ["Deployment", "StatefulSet", "LeaderWorkerSet"]},
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "ranks.perPod": POSITIVE,
    "ranks.pods": POSITIVE,
    "apiKeys.keys": {"type": "array", "items": {"type": "string", "minLength": 1}},
    "checkpoints.size": QUANTITY,
    "checkpoints.path": {"type": "string", "pattern": "^/"},
    "storage.size": QUANTITY,
    "storage.path": {"type": "string", "pattern": "^/"},
    "memory.perRank": QUANTITY,
    "sharedMemory": QUANTITY,
    "kvEvents.port": KINDS["PORT"],
    "probes.type": {"enum": ["http", "grpc"]},
    "service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "disruptionBudget.maxUnavailable": {"type": ["integer", "string"], "pattern": "^[0-9]+%$"},
    "strategy.maxSurge": {"type": ["integer", "string"], "pattern": "^[0-9]+%$"},
    "strategy.maxUnavailable": {"type": ["integer", "string"], "pattern": "^[0-9]+%$"},
    "router.failureMode": {"enum": ["FailOpen", "FailClose"]},
    "download.files": {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["url", "path", "sha256"],
            "additionalProperties": False,
            "properties": {
                "url": {"type": "string", "pattern": "^https?://"},
                "path": {"type": "string", "pattern": "^[^/ ]"},
                "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
            },
        },
    },
}
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def setting(kind, text):
    """Returns the schema of a setting: `kind` and `text` are its comment in default.yaml."""
    if kind in KINDS:
        schema = dict(KINDS[kind])
    elif re.fullmatch(r"[a-z0-9_]+(\|[a-z0-9_]+)+", kind):
        choices = kind.split("|")
        # YAML reads a plain on or off as a boolean.
        schema = {"enum": choices + ([True, False] if {"on", "off"} <= set(choices) else [])}
    else:
        schema = {"type": "string"}
    return schema | {"description": text}


def settings():
    """Returns the schema of `settings`, from the comments of configs/default.yaml."""
    entries = re.findall(r"^# ([^:\n]+(?::FIELD=VALUE\.\.\.\])?): (.*)\n#? ?([a-z0-9-]+):",
                         (ROOT / "configs/default.yaml").read_text(), re.MULTILINE)
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["drain-delay", "drain-timeout", "http-port", "grpc-port", "model", "host"],
        "properties": {name: setting(kind, text) for kind, text, name in entries
                       if name not in DERIVED},
    }


def infer(value, path):
    """Returns the schema of a value with this default. An empty map or list may hold anything."""
    if path == "settings":
        return settings()
    if path in CONSTRAINTS:
        return CONSTRAINTS[path]
    schema = {"type": TYPES[type(value)]}
    if isinstance(value, dict) and value and not path.endswith("resources"):
        schema["additionalProperties"] = False
        schema["properties"] = {
            key: infer(child, f"{path}.{key}" if path else key) for key, child in value.items()}
    if isinstance(value, int) and not isinstance(value, bool):
        schema["minimum"] = 0
    return schema


def generate():
    schema = infer(yaml.safe_load((CHART / "values.yaml").read_text()), "")
    # A parent chart passes `global` to each of its charts.
    schema["properties"]["global"] = {"type": "object"}
    return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#"} | schema, indent=2) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        if not SCHEMA.exists() or SCHEMA.read_text() != generate():
            sys.exit("write it anew: deploy/helm/schema.py")
    else:
        SCHEMA.write_text(generate())
