"""The alerts on the metrics of two replicas under load: none fires in an hour.

The test records some minutes, and repeats their growth until there is a day and an hour, because an alert compares
with yesterday. TESSERA_RECORD_SECONDS=3600 records a whole hour."""

import math
import os
import re
import shutil
import threading
import time
import urllib.request

import pytest

from alerts import RULES, firing
from fleet import load, refused, replicas

RECORD = int(os.environ.get("TESSERA_RECORD_SECONDS", 150))
STEP = 15  # seconds between scrapes, as in the chart's values
SERIES = re.compile(r"^([a-z_]+:[a-z0-9_]+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
NAMES = set(re.findall(r"\b(?:vllm|tessera):[a-z0-9_]+(?![\w:])", RULES.read_text()))
COUNTER = re.compile(r"[^{]*_(total|bucket|sum|count)\{")
# Chats with pauses; some clients leave.
LOAD = ["turns:turns=4:think=2:input=200:output=30", "--rate", 0.4, "--faults", "close@first=0.02"]


def scrape(number, replica):
    """Returns the values of a replica's series of which the rules speak, as Prometheus names them."""
    text = urllib.request.urlopen(replica.url + "/metrics", timeout=STEP).read().decode()
    target = f'job="tessera",namespace="n",instance="{number}"'
    return {f"{name}{{{target}{',' + labels if labels else ''}}}": float(value)
            for name, labels, value in SERIES.findall(text) if name in NAMES} | {f"up{{{target}}}": 1.0}


def record(servers):
    """Returns the values of every series, a list with an entry for each scrape; None: not there yet."""
    begin, scrapes = time.monotonic(), []
    for place in range(RECORD // STEP + 1):
        time.sleep(max(0, begin + place * STEP - time.monotonic()))
        scrapes.append({name: value for number, one in enumerate(servers) for name, value in scrape(number, one).items()})
    return {name: [one.get(name) for one in scrapes] for name in scrapes[-1]}


def repeated(name, values, count):
    """Returns the values `count` times over: counters go on growing."""
    counts = COUNTER.match(name)
    missing = 0 if counts else next(value for value in values if value is not None)
    growth = values[-1] - (values[0] or 0) if counts else 0
    whole = list(values)
    for turn in range(1, count):
        whole += [(missing if value is None else value) + turn * growth for value in values[1:]]
    return whole


def restarted(name, values, place):
    """Returns the values of a process that starts again at this place, and misses a scrape."""
    begin = (values[place] or 0) if COUNTER.match(name) else 0
    missed = 0.0 if name.startswith("up{") else None
    return values[:place] + [missed] + [value - begin for value in values[place + 1:]]


def text_of(values):
    return " ".join("_" if value is None else f"{value:.10g}" for value in values)


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool: package prometheus")
@pytest.mark.long
def test_no_alert_fires_in_an_hour_of_real_metrics(tmp_path):
    folders = [tmp_path / f"load{number}" for number in range(2)]
    with replicas(tmp_path, 2) as servers:
        loads = []
        for number, (folder, one) in enumerate(zip(folders, servers)):
            folder.mkdir()
            refused(one.url)  # a client's mistake
            loads.append(threading.Thread(target=load, args=(
                one.url, folder, *LOAD, "--seed", number, "--duration", RECORD), kwargs={"patience": RECORD + 300}))
            loads[-1].start()
        recorded = record(servers)
        for one in loads:
            one.join()
    assert all((folder / "report.json").exists() for folder in folders), "a load failed"
    assert {re.match("[^{]*", name)[0] for name in recorded} == NAMES | {"up"}
    days = repeated_day(recorded)
    answered = [values[-1] for name, values in days.items() if 'finished_reason="length"' in name]
    assert len(answered) == 2 and min(answered) > 0
    hour = [f"{minute}m" for minute in range(25 * 60, 26 * 60)]
    assert firing(tmp_path, {name: text_of(values) for name, values in days.items()}, STEP, hour) == set()
    lost = {name: text_of(values[:-40] + [0] * 40 if name.startswith('up{job="tessera",namespace="n",instance="1"')
                          else values) for name, values in days.items()}
    assert firing(tmp_path, lost, STEP, hour) == {"TesseraReplicaDown"}


def repeated_day(recorded):
    """Returns a day and an hour of these series. Within the hour one replica restarts, as in a release."""
    steps = 26 * 3600 // STEP
    count = math.ceil(steps / (RECORD // STEP))
    days = {name: repeated(name, values, count)[:steps + 1] for name, values in recorded.items()}
    place = int(25.5 * 3600 / STEP)
    return {name: restarted(name, values, place) if 'instance="0"' in name else values
            for name, values in days.items()}
