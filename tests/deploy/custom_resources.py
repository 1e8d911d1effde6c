"""The parts of custom resources that the chart uses, written from their definitions:
InferencePool v1, HTTPRoute v1, LeaderWorkerSet v1, ServiceMonitor v1, PrometheusRule v1 and
ScaledObject v1alpha1. No property beside these is accepted."""

import jsonschema

TEXT = {"type": "string", "minLength": 1}
COUNT = {"type": "integer", "minimum": 0}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
DURATION = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
LABELS = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string", "maxLength": 63}}
ANY_POD = {"type": "object"}  # chart.validate() checks it as a pod template


def record(required, **optional):
    """Returns the schema of an object with these properties alone."""
    return {"type": "object", "additionalProperties": False, "required": list(required),
            "properties": required | optional}


def array(items, **limits):
    return {"type": "array", "items": items, "minItems": 1} | limits


STEP = {"type": ["integer", "string"]}
SCHEMAS = {
    "InferencePool": ("inference.networking.k8s.io/v1", record({
        "targetPorts": array(record({"number": PORT}), maxItems=8),
        "selector": record({"matchLabels": LABELS}),
        "endpointPickerRef": record({"name": TEXT, "port": record({"number": PORT})},
                                    failureMode={"enum": ["FailOpen", "FailClose"]}),
    })),
    "HTTPRoute": ("gateway.networking.k8s.io/v1", record({
        "parentRefs": array(record({"name": TEXT}, namespace=TEXT)),
        "rules": array(record({
            "backendRefs": array(record({"group": TEXT, "kind": TEXT, "name": TEXT})),
            "matches": array(record({"path": record({
                "type": {"enum": ["Exact", "PathPrefix"]}, "value": {"type": "string", "pattern": "^/"}})})),
        }, timeouts=record({"request": DURATION}))),
    }, hostnames=array(TEXT))),
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io/v1", record({
        "leaderWorkerTemplate": record({
            "size": {"type": "integer", "minimum": 2},
            "leaderTemplate": ANY_POD,
            "workerTemplate": ANY_POD,
            "restartPolicy": {"enum": ["RecreateGroupOnPodRestart", "None"]},
        }),
    }, replicas=COUNT, startupPolicy={"enum": ["LeaderCreated", "LeaderReady"]},
        rolloutStrategy=record({"type": {"enum": ["RollingUpdate"]}},
                               rollingUpdateConfiguration=record({}, maxSurge=STEP, maxUnavailable=STEP)))),
    "ServiceMonitor": ("monitoring.coreos.com/v1", record({
        "selector": record({"matchLabels": LABELS}),
        "endpoints": array(record({"port": TEXT}, path=TEXT, interval=DURATION,
                                  scheme={"enum": ["http", "https"]},
                                  tlsConfig=record({}, insecureSkipVerify={"type": "boolean"}))),
    }, jobLabel=TEXT)),
    "PrometheusRule": ("monitoring.coreos.com/v1", record({
        "groups": array(record({
            "name": TEXT,
            "rules": array({"oneOf": [
                record({"record": TEXT, "expr": TEXT}),
                record({"alert": TEXT, "expr": TEXT, "labels": LABELS,
                        "annotations": {"type": "object", "required": ["summary", "runbook"]}},
                       **{"for": DURATION}),
            ]}),
        })),
    })),
    "ScaledObject": ("keda.sh/v1alpha1", record({
        "scaleTargetRef": record({"apiVersion": TEXT, "kind": TEXT, "name": TEXT}),
        "triggers": array(record({
            "type": {"const": "prometheus"},
            "metricType": {"enum": ["AverageValue", "Value"]},
            "metadata": record({"serverAddress": TEXT, "query": TEXT,
                                "threshold": {"type": "string", "pattern": "^[0-9]+$"}}),
        })),
    }, minReplicaCount=COUNT, maxReplicaCount=COUNT, pollingInterval=COUNT, cooldownPeriod=COUNT)),
}


def validate(thing):
    version, spec = SCHEMAS[thing["kind"]]
    assert thing["apiVersion"] == version
    jsonschema.validate(thing["spec"], spec)
