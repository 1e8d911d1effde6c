#!/usr/bin/env python3
"""Joint verdicts and tables of several checkpoints, from results written here."""

import importlib.util
import json
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("checkpoints_report", ROOT / "eval/checkpoints_report.py")
report = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(report)


def results(kl, verdict):
    """The parts of a JSON of tessera-eval that the report reads."""
    def scores(value):
        return {"f16": None, "k4v4r": {"value": value, "low": value / 2, "high": value * 2}}
    return {"presets": [{"name": "f16", "kv": {"bytes_per_token": 100}, "judgement": None},
                        {"name": "k4v4r", "kv": {"bytes_per_token": 32}, "judgement": {"verdict": verdict}}],
            "tasks": [{"name": "text", "items": 5, "metrics": [
                {"name": "KL mean, decode", "scores": scores(kl)}, {"name": "KL p99", "scores": scores(5 * kl)},
                {"name": "top-1 agreement", "scores": scores(93)}]}]}


class JointVerdicts(unittest.TestCase):
    def test_one_make_is_not_enough(self):
        self.assertEqual(report.joint_verdict([("Qwen2.5", "lossless")]), "undecided")
        self.assertEqual(report.joint_verdict([("Qwen2.5", "lossless"), ("Qwen2.5", "lossless")]), "undecided")
        self.assertEqual(report.joint_verdict([]), "undecided")

    def test_two_makes_that_agree_decide(self):
        self.assertEqual(report.joint_verdict([("Qwen2.5", "lossless"), ("SmolLM2", "lossless")]), "lossless")

    def test_the_worst_checkpoint_decides(self):
        self.assertEqual(report.joint_verdict([("Qwen2.5", "near"), ("SmolLM2", "lossless")]), "near")
        self.assertEqual(report.joint_verdict([("Qwen2.5", "no"), ("SmolLM2", "lossless")]), "no")
        self.assertEqual(report.joint_verdict([("Qwen2.5", "no")]), "no")
        self.assertEqual(report.joint_verdict([("Qwen2.5", "undecided"), ("SmolLM2", "lossless")]), "undecided")


class Tables(unittest.TestCase):
    def test_each_checkpoint_has_its_columns_and_the_row_one_verdict(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            (folder / "smollm2-135m.prose.json").write_text(json.dumps(results(0.002, "lossless")))
            (folder / "qwen2.5-coder-0.5b.prose.json").write_text(json.dumps(results(0.2, "no")))
            table = report.text_table(report.read(folder, "prose")).splitlines()
        self.assertEqual(len(table), 3)
        self.assertIn("SmolLM2-135M: KL", table[0])
        self.assertEqual(table[2], "| k4v4r | 0.002 (0.001 to 0.004) | 0.01 | 93.0 "
                                   "| 0.20 (0.10 to 0.40) | 1.00 | 93.0 | no |")

    def test_a_folder_without_results_has_no_tables(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(report.read(Path(folder), "prose"), [])


if __name__ == "__main__":
    unittest.main()
