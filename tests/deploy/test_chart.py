"""The Helm chart without a cluster: every object is valid, every value does something."""

import importlib.util
import re
import subprocess

import pytest
import yaml

from chart import (CHART, ROOT, SERVER, VALUES, helm, only, pod_templates, refusal, render,
                   render_text, server_settings, validate)

FILES = {"values": {}} | {path.stem: yaml.safe_load(path.read_text()) for path in VALUES}
VERSIONS = ["1.27", "1.32", "1.37"]
CHECKSUM = "0" * 64
DOWNLOAD = {"enabled": True, "files": [{"url": "https://example.org/f", "path": "f", "sha256": CHECKSUM}]}

# Together these show everything that the chart can make.
SCENARIOS = {
    "everything": {
        "apiKeys": {"keys": ["one", "two"]}, "checkpoints": {"create": True, "storageClass": "fast"},
        "download": DOWNLOAD | {"tokenSecret": "token"}, "load": {"enabled": True},
        "service": {"annotations": {"a": "b"}, "sessionAffinity": True},
        "networkPolicy": {"enabled": True, "clients": [{"podSelector": {}}],
                          "monitoring": [{"podSelector": {}}], "egress": [{"ports": [{"port": 443}]}]},
        "monitoring": {"serviceMonitor": True, "rules": True, "dashboard": True, "labels": {"a": "b"}},
        "router": {"enabled": True, "replicas": 2,
                   "route": {"gatewayNamespace": "gateway", "hostnames": ["llm.example.org"]}},
        "ranks": {"perPod": 2}, "runtimeClassName": "nvidia", "priorityClassName": "high",
        "nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}}, "podLabels": {"a": "b"}, "podAnnotations": {"a": "b"},
        "env": [{"name": "A", "value": "b"}], "imagePullSecrets": [{"name": "pull"}],
        "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        "serviceAccount": {"annotations": {"a": "b"}}, "probes": {"type": "grpc"},
        "resources": {"limits": {"cpu": "8"}},
        "kvEvents": {"enabled": True, "from": [{"podSelector": {}}]},
    },
    "volumes of the pods": {"workload": "StatefulSet", "storage": {"storageClass": "fast"},
                            "download": DOWNLOAD, "tls": {"secret": "certificate"},
                            "monitoring": {"serviceMonitor": True}, "router": {"enabled": True}},
    "prefixes on the pods' volumes": {
        "workload": "StatefulSet", "storage": {"size": "20Gi"},
        "settings": {"kv-disk": "/storage/kv", "kv-disk-size": "10GiB"}},
    "several nodes": {"workload": "LeaderWorkerSet", "ranks": {"pods": 2, "perPod": 2},
                      "checkpoints": {"claim": "shared"}, "networkPolicy": {"enabled": True},
                      "router": {"enabled": True}},
    "autoscaled": {"autoscaling": {"enabled": True}, "apiKeys": {"secret": "keys"},
                   "load": {"enabled": True}},
    "autoscaled by KEDA": {"keda": {"enabled": True}, "serviceAccount": {"create": False, "name": "mine"},
                           "tenants": {"secret": "tenants"}},
}
ALL = FILES | SCENARIOS


def schema_module():
    spec = importlib.util.spec_from_file_location("schema", ROOT / "deploy/helm/schema.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCHEMA = schema_module()


def test_the_schema_is_current():
    assert SCHEMA.SCHEMA.read_text() == SCHEMA.generate(), "write it anew: deploy/helm/schema.py"


@pytest.mark.parametrize("name", FILES)
def test_lint(name):
    done = helm("lint", "--strict", str(CHART), values=FILES[name])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ALL)
def test_every_object_is_valid_in_the_oldest_and_newest_version(name):
    for thing in render(ALL[name]):
        validate(thing, VERSIONS[0])
        validate(thing, VERSIONS[-1])


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ALL)
def test_every_object_is_valid(name, version):
    for thing in render(ALL[name], "--kube-version", version):
        validate(thing, version)


def test_the_validation_can_fail():
    deployment = only(render(), "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readonly"] = True
    with pytest.raises(Exception, match="readonly"):
        validate(deployment, VERSIONS[-1])
    pool = only(render({"router": {"enabled": True}}), "InferencePool")
    del pool["spec"]["selector"]
    with pytest.raises(Exception, match="selector"):
        validate(pool, VERSIONS[-1])


def leaves(values, path=()):
    """Yields the path and default of every value of the chart that has no parts."""
    for key, value in values.items():
        if isinstance(value, dict) and value and path + (key,) != ("settings",):
            yield from leaves(value, path + (key,))
        elif path + (key,) != ("settings",):  # see test_every_setting_can_be_set
            yield path + (key,), value


# Another value for leaves that are not plain text, numbers or switches.
OTHER = {
    ("workload",): "StatefulSet", ("image", "pullPolicy"): "Always", ("probes", "type"): "grpc",
    ("service", "type"): "NodePort", ("router", "failureMode"): "FailClose",
    ("checkpoints", "size"): "1Gi", ("storage", "size"): "1Gi", ("sharedMemory",): "2Gi",
    ("memory", "perRank"): "2Gi",
    ("checkpoints", "path"): "/other", ("storage", "path"): "/other",
    ("topologySpread", "keys"): ["other"], ("load", "arguments"): ["other"],
    ("checkpoints", "accessModes"): ["ReadWriteMany"],
    ("router", "route", "requestTimeout"): "7s", ("monitoring", "interval"): "7s",
}


def another(path, value):
    if path in OTHER:
        return OTHER[path]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 7
    if isinstance(value, str):
        return "other"
    return None  # an empty map or list: SCENARIOS fill it


def replaced(values, path, value):
    """Returns `values` with another value at the path."""
    here = value if len(path) == 1 else replaced(values.get(path[0], {}), path[1:], value)
    return values | {path[0]: here}


def at(values, path):
    for key in path:
        if not isinstance(values, dict) or key not in values:
            return None
        values = values[key]
    return values


@pytest.mark.long
def test_no_value_is_unused():
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    rendered = {name: render_text(values) for name, values in SCENARIOS.items()}
    unused = []
    for path, default in leaves(defaults):
        other = another(path, default)
        for name, values in SCENARIOS.items():
            present = at(values, path)
            if other is None and present is None:
                continue
            # Another value where the scenario has the default, else the default.
            changed = replaced(values, path, other if present in (None, default) else default)
            done = helm("template", "release", str(CHART), "--namespace", "space", values=changed)
            if done.returncode == 0 and done.stdout != rendered[name]:
                break
            if done.returncode != 0 and "schema" not in done.stderr:
                break  # refused by its name: it is read
        else:
            unused.append(".".join(path))
    assert unused == []


# Values of settings whose text has a form that only the server or the chart knows.
KNOWN = {"kv": "k8v8", "kv-also": "k4v2", "kv-ladder": "none", "kv-disk": "/storage/kv"}


def example(name, schema, default):
    """Returns a value of a setting that is not its default."""
    if name in KNOWN:
        return KNOWN[name]
    if "enum" in schema:
        return next(value for value in schema["enum"] if value != default)
    if schema["type"] == "integer":
        return (default or 0) + 3
    if "number" in schema["type"]:
        return 0.25
    if "TiB" in schema.get("pattern", ""):
        return "3MiB"
    if "ms" in schema.get("pattern", ""):
        return "17s"
    return "other"


def plain(settings):
    """Returns settings as the server prints them: YAML takes its on and off for booleans."""
    return {name: {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value
            for name, value in settings.items()}


def server_reads(text, tmp_path):
    """Returns the settings that tessera-server reads from this file."""
    file = tmp_path / "tessera.yaml"
    file.write_text(text)
    done = subprocess.run([SERVER, "--config", file, "--print-config"], text=True,
                          capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)


def test_every_setting_can_be_set(tmp_path):
    properties = SCHEMA.settings()["properties"]
    defaults = plain(yaml.safe_load((ROOT / "configs/default.yaml").read_text()))
    chosen = {name: example(name, schema, defaults.get(name)) for name, schema in properties.items()}
    written, text = server_settings(render({"settings": chosen, "workload": "StatefulSet"}))
    assert written == chosen
    read = plain(server_reads(text, tmp_path))
    assert [name for name in chosen if read.get(name) == defaults.get(name)] == []
    # The rest are decided by values of the chart.
    help_text = subprocess.run([SERVER, "--help"], text=True, capture_output=True, check=True).stdout
    # A flag with a value is a setting, unless it names the file of settings or belongs to --plan.
    flags = set(re.findall(r"^ +--([a-z0-9-]+) (?!\S+ Needs: --plan)[A-Za-z]", help_text,
                           re.MULTILINE)) - {"config"}
    assert flags == set(properties) | set(SCHEMA.DERIVED)
    written, _ = server_settings(render(
        {"apiKeys": {"keys": ["key"]}, "tls": {"secret": "certificate"}, "ranks": {"perPod": 2},
         "kvEvents": {"enabled": True}}))
    assert written["tensor-parallel"] == 2
    assert written["api-key-file"] == "/etc/tessera/keys/keys"
    assert written["tls-cert"] == "/etc/tessera/tls/tls.crt"
    assert written["tls-key"] == "/etc/tessera/tls/tls.key"
    assert written["kv-events"] == "tcp://*:5557"
    written, _ = server_settings(render({"tenants": {"secret": "tenants"}}))
    assert written["tenants"] == "/etc/tessera/tenants/tenants.yaml"


@pytest.mark.parametrize("name", ALL)
def test_the_server_reads_the_file_of_settings(name, tmp_path):
    written, text = server_settings(render(ALL[name]))
    server_reads(text, tmp_path)
    assert written["host"] == "0.0.0.0"


@pytest.mark.parametrize("values, named", [
    ({"settings": {"kv-memroy": "1GiB"}}, "kv-memroy"),
    ({"settings": {"kv-memory": "1GB"}}, "kv-memory"),
    ({"settings": {"api-key": "secret"}}, "api-key"),
    ({"settings": {"http-port": 0}}, "http-port"),
    ({"replica": 2}, "replica"),
    ({"workload": "DaemonSet"}, "workload"),
    ({"ranks": {"pods": 2}}, "LeaderWorkerSet"),
    ({"workload": "LeaderWorkerSet"}, "ranks.pods"),
    ({"tls": {"secret": "a"}, "probes": {"type": "grpc"}}, "probes.type"),
    ({"tls": {"secret": "a"}, "load": {"enabled": True}}, "load.enabled"),
    ({"apiKeys": {"secret": "a", "keys": ["b"]}}, "apiKeys"),
    ({"tenants": {"secret": "a"}, "apiKeys": {"keys": ["b"]}}, "tenants.secret"),
    ({"tenants": {"secret": "a"}, "load": {"enabled": True}}, "load.enabled"),
    ({"settings": {"tenants": "/etc/tenants.yaml"}}, "tenants"),
    ({"checkpoints": {"claim": "a", "create": True}}, "checkpoints"),
    ({"download": {"enabled": True}}, "download.files"),
    ({"download": DOWNLOAD}, "checkpoints.claim"),
    ({"download": {"enabled": True, "files": [{"url": "https://a", "path": "/etc", "sha256": CHECKSUM}]}},
     "path"),
    ({"autoscaling": {"enabled": True}, "keda": {"enabled": True}}, "keda"),
    ({"resources": {"limits": {"memory": "1Gi"}}}, "resources.limits.memory: 1Gi is less than"),
    ({"resources": {"requests": {"memory": "999M"}}}, "resources.requests.memory: 999M is less than"),
    ({"settings": {"kv-memory": 0}}, "settings.kv-memory"),
    ({"settings": {"kv-disk": "/storage/kv"}}, "settings.kv-disk: /storage/kv is on no volume"),
    ({"settings": {"kv-disk": "/kv"}, "workload": "StatefulSet"}, "settings.kv-disk: /kv is on no volume"),
    ({"settings": {"kv-disk": "/storage2/kv"}, "workload": "StatefulSet"}, "is on no volume"),
    ({"settings": {"kv-disk": "/storage/kv", "kv-disk-size": "60GiB"}, "workload": "StatefulSet"},
     "settings.kv-disk-size: 64424509440 bytes do not fit into storage.size, 50Gi"),
])
def test_values_that_cannot_be_are_refused_by_name(values, named):
    assert named in refusal(values)


def test_prefixes_on_disk_stay_with_their_pod():
    values = SCENARIOS["prefixes on the pods' volumes"]
    stateful = only(render(values), "StatefulSet")["spec"]
    assert stateful["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    container = stateful["template"]["spec"]["containers"][0]
    assert {"name": "storage", "mountPath": "/storage"} in container["volumeMounts"]
    elsewhere = {"settings": {"kv-disk": "/more/kv"}, "extraVolumes": [{"name": "more", "emptyDir": {}}],
                 "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}]}
    assert server_settings(render(elsewhere))[0]["kv-disk"] == "/more/kv"


def memory_of(values):
    """Returns request and limit of the server's container, in MiB."""
    container = pod_templates(render(values))[0]["spec"]["containers"][0]
    return [int(container["resources"][part]["memory"].removesuffix("Mi")) for part in ("requests", "limits")]


@pytest.mark.parametrize("settings", [
    {}, {"request-memory": "2GiB", "http-max-body": "1MiB", "work-threads": 4},
    {"http-max-connections": 100, "http-max-header": "32KiB", "kv-memory": "1GiB"},
    {"grpc-max-message": "16MiB", "response-store": 0},
    {"grpc-max-message": "32MiB", "grpc-max-connections": 9, "grpc-max-streams": 9, "max-answer": "1GiB"}])
def test_the_memory_of_a_pod_holds_what_the_plan_counts(settings):
    flags = [f"--{name}={value}" for name, value in ({"kv-memory": "384MiB"} | settings).items()]
    planned = subprocess.run([SERVER, "--plan", f"--model={ROOT}/models/checkpoints/tessera-tiny", *flags],
                             text=True, capture_output=True, check=True).stdout
    counted = {name: int(count) for name, count in re.findall(r"^  (\w+)[^:]*: (\d+) bytes$", planned, re.MULTILINE)}
    whole = 512 + (counted["KV"] + counted["requests"]) / (1 << 20)
    request, limit = memory_of({"settings": settings})
    assert request == limit == pytest.approx(whole * 10 / 9, abs=2)
    assert counted["weights"] + counted["workspace"] + counted["sampling"] < 512 << 20


@pytest.mark.parametrize("cpu, ranks, settings, threads", [
    (None, 1, {}, None), ("4", 1, {}, 4), (8, 2, {}, 4), ("2500m", 1, {}, 2), ("1.5", 2, {}, 1), ("500m", 1, {}, 1),
    ("4", 1, {"threads": 3}, 3), ("4", 1, {"threads": 0}, 0)])
def test_a_pod_computes_on_no_more_threads_than_its_cpu_limit_allows(cpu, ranks, settings, threads):
    written, _ = server_settings(render({"resources": {"limits": {"cpu": cpu} if cpu else {}}, "settings": settings,
                                         "ranks": {"perPod": ranks}}))
    assert written.get("threads") == threads


def test_each_rank_of_a_pod_has_its_memory():
    one, _ = memory_of({})
    two, _ = memory_of({"ranks": {"perPod": 2}, "memory": {"perRank": "1Gi"}})
    assert two - one == pytest.approx((2 * (1024 + 384) - (512 + 384)) * 10 / 9, abs=1)


def matches(selector, labels):
    return selector.items() <= labels.items()


@pytest.mark.parametrize("name", ALL)
def test_selectors_find_the_pods_that_serve_and_no_others(name):
    objects = render(ALL[name])
    templates = [template["metadata"]["labels"] | {"_ports": str([
        port["name"] for port in template["spec"]["containers"][0].get("ports", [])])}
        for template in pod_templates(objects)]
    serving = [labels for labels in templates if "'http', 'grpc'" in labels["_ports"]]
    assert len(serving) == 1
    for thing in objects:
        if thing["kind"] == "Service" and not thing["metadata"]["name"].endswith("-picker"):
            selector = thing["spec"]["selector"]
        elif thing["kind"] in ("PodDisruptionBudget", "InferencePool"):
            selector = thing["spec"]["selector"]["matchLabels"]
        elif thing["kind"] == "ServiceMonitor":
            services = [other["metadata"]["labels"] for other in objects if other["kind"] == "Service"]
            found = [labels for labels in services
                     if matches(thing["spec"]["selector"]["matchLabels"], labels)]
            assert len(found) == 1  # a pod behind two services would be scraped twice
            continue
        else:
            continue
        assert [labels for labels in templates if matches(selector, labels)] == serving, thing["kind"]


@pytest.mark.parametrize("name", ALL)
def test_everything_a_pod_mounts_or_names_is_there(name):
    objects = render(ALL[name])
    made = {(thing["kind"], thing["metadata"]["name"]) for thing in objects}
    for template in pod_templates(objects):
        spec = template["spec"]
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        for thing in objects:
            if thing["kind"] == "StatefulSet":
                volumes |= {claim["metadata"]["name"] for claim in thing["spec"]["volumeClaimTemplates"]}
        for container in spec["containers"] + spec.get("initContainers", []):
            for mount in container.get("volumeMounts", []):
                assert mount["name"] in volumes
        for volume in spec.get("volumes", []):
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in made
            if "secret" in volume and volume["name"] == "keys" and "keys" in ALL[name]["apiKeys"]:
                assert ("Secret", volume["secret"]["secretName"]) in made


@pytest.mark.parametrize("name", ALL)
def test_pods_have_no_rights_that_they_do_not_need(name):
    for template in pod_templates(render(ALL[name])):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        picker = template["metadata"]["labels"]["app.kubernetes.io/component"] == "picker"
        assert picker or spec["automountServiceAccountToken"] is False
        for container in spec["containers"] + spec.get("initContainers", []):
            rights = container["securityContext"]
            assert rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"]
            assert rights["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("delay, timeout, seconds", [
    ("500ms", "30s", 31), ("10s", "2m", 130), ("0", "90", 90), ("1500ms", "1m", 62)])
def test_the_grace_period_exceeds_the_drain(delay, timeout, seconds):
    objects = render({"settings": {"drain-delay": delay, "drain-timeout": timeout},
                      "lifecycle": {"preStopSeconds": 4}})
    spec = only(objects, "Deployment")["spec"]["template"]["spec"]
    # Five seconds for clients to read the last answer, and ten to spare.
    assert spec["terminationGracePeriodSeconds"] == 4 + seconds + 15
    assert spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "4"]


@pytest.mark.parametrize("ranks, launcher", [
    ({}, []), ({"ranks": {"perPod": 2}}, ["mpirun", "-n", "2"]),
    ({"workload": "LeaderWorkerSet", "ranks": {"pods": 2}}, ["sh", "/etc/tessera/settings/ranks.sh"])])
def test_a_changed_secret_reaches_the_server(ranks, launcher):
    for values, watched in [({"apiKeys": {"secret": "a"}, "tls": {"secret": "b"}}, "/etc/tessera/keys /etc/tessera/tls"),
                            ({"tls": {"secret": "b"}}, "/etc/tessera/tls"),
                            ({"tenants": {"secret": "c"}}, "/etc/tessera/tenants"), ({}, None)]:
        objects = render(values | ranks)
        reload = ["sh", "/etc/tessera/settings/reload.sh"] if watched else []
        server = ["tessera-server", "--config", "/etc/tessera/settings/tessera.yaml"]
        for template in pod_templates(objects):
            container = template["spec"]["containers"][0]
            environment = {entry["name"]: entry["value"] for entry in container.get("env", [])}
            assert environment.get("TESSERA_WATCHED") == watched
            assert container["command"] == ["tini", "--", *launcher, *reload, *server]
            mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert set((watched or "").split()) <= mounts
        _, *files = [thing for thing in objects if thing["kind"] == "ConfigMap"][0]["data"]
        assert ("reload.sh" in files) == (watched is not None)


@pytest.mark.parametrize("name", FILES)
def test_a_claim_that_the_chart_makes_is_filled(name):
    values = FILES[name]
    assert not at(values, ("checkpoints", "create")) or at(values, ("download", "enabled"))


def test_autoscalers_leave_the_number_of_pods_alone():
    for values in (SCENARIOS["autoscaled"], SCENARIOS["autoscaled by KEDA"]):
        assert "replicas" not in only(render(values), "Deployment")["spec"]
    assert only(render({"replicas": 3}), "Deployment")["spec"]["replicas"] == 3


def test_the_picker_scores_by_metrics_that_the_server_has():
    text = only(render({"router": {"enabled": True}}), "ConfigMap", "release-tessera-picker")["data"]
    config = yaml.safe_load(text["picker.yaml"])
    names = {plugin.get("name", plugin["type"]) for plugin in config["plugins"]}
    for profile in config["schedulingProfiles"]:
        assert {plugin["pluginRef"] for plugin in profile["plugins"]} <= names
    assert "METRICS_SCHEME" not in text["picker.yaml"]


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_picker_may_read_what_it_watches(replicas):
    rules = only(render({"router": {"enabled": True, "replicas": replicas}}), "Role")["rules"]
    allowed = {(group, resource): set(rule["verbs"])
               for rule in rules for group in rule["apiGroups"] for resource in rule["resources"]}
    # llm-d's own chart (v0.9.0) grants these; without them its caches never fill, and the picker ends.
    watched = {("", "pods"), ("inference.networking.k8s.io", "inferencepools")} | {
        (group, resource) for group in ("llm-d.ai", "inference.networking.x-k8s.io")
        for resource in ("inferenceobjectives", "inferencemodelrewrites")}
    assert {thing: allowed.get(thing) for thing in watched} == dict.fromkeys(watched, {"get", "list", "watch"})
    leads = {("coordination.k8s.io", "leases"), ("", "events")}
    assert set(allowed) - watched == (leads if replicas > 1 else set())
