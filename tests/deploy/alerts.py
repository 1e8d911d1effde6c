"""The alerts, evaluated by Prometheus's own rule tests."""

import re
import subprocess

import yaml

from chart import CHART

RULES = CHART / "files/alerts.yaml"
ALERTS = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"]
          for rule in group["rules"] if "alert" in rule]


def firing(tmp_path, series, step, times):
    """Returns the names of the alerts that fire at any of these times. series: values by name, in promtool's form,
    `step` seconds apart. times: as "26h" or "90m"."""
    # promtool compares: an alert fires if the test that expects none of it fails.
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({
        "rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [{
            "interval": f"{step}s", "input_series": [{"series": name, "values": values}
                                                     for name, values in series.items()],
            "alert_rule_test": [{"eval_time": time, "alertname": alert, "exp_alerts": []}
                                for alert in ALERTS for time in times]}]}))
    done = subprocess.run(["promtool", "test", "rules", file], text=True, capture_output=True, check=False)
    found = set(re.findall(r"alertname: ?(\w+)", done.stderr + done.stdout))
    assert done.returncode == (1 if found else 0), done.stderr
    return found
