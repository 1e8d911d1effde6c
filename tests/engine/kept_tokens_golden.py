"""Computes the tokens that policies of papers keep of a prompt, by kvpress on transformers in f32.

    pip install kvpress==0.5.5
    python kept_tokens_golden.py ../../models/checkpoints/tessera-tiny ../golden/kept_tokens.json

Attention, scores and the ranking of tokens are kvpress's: SnapKVPress, StreamingLLMPress, KVzipPress.
Where our presets differ from its defaults, the difference is a line here: the protected first and newest tokens,
pooling by the highest neighbour, KVzip without a sentence
before the replay, and whole pages. A token whose score is within 1 % of the cut of its head is "unsure", because the
engine reads keys in f16.
"""

import argparse
import json
from pathlib import Path

import torch
from kvpress.presses.kvzip_press import KVzipPress
from kvpress.presses.snapkv_press import SnapKVPress
from kvpress.presses.streaming_llm_press import StreamingLLMPress
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, DynamicCache

TOKENS, SINKS, RECENT, WINDOW, POOL, SHARE = 640, 4, 64, 32, 7, 0.25
SECTION, PAGE, SECTION_SHARE = 512, 32, 0.5
MARGIN = 0.01


class Recorder(SnapKVPress):
    """SnapKV with our pooling and protected tokens. Keeps the scores of each layer."""

    def score(self, module, *args):
        scores = super().score(module, *args)
        own = scores[..., : -self.window_size]
        own = F.max_pool1d(own, POOL, stride=1, padding=POOL // 2)
        scores = torch.cat([own, scores[..., -self.window_size :]], dim=-1)
        scores[..., :SINKS] = scores.max() + 1
        scores[..., -RECENT:] = scores.max() + 1
        self.recorded[int(module.layer_idx)] = scores[0].clone()
        return scores


def pass_positions(module, args, kwargs):
    """kvpress 0.5.5 reads an argument that transformers 5 no longer passes."""
    begin = kwargs["position_ids"][0, 0] if "position_ids" in kwargs else 0
    count = kwargs["hidden_states"].shape[1]
    return args, kwargs | {"cache_position": torch.arange(begin, begin + count)}


def prefill(model, ids, press=None):
    cache = DynamicCache()
    with torch.no_grad():
        if press is None:
            model(torch.tensor([ids]), past_key_values=cache)
        else:
            with press(model):
                model(torch.tensor([ids]), past_key_values=cache)
    return cache


def bits(mask) -> str:
    """Token i is bit i % 4, counted from the highest, of hex digit i // 4."""
    digits = [int("".join("1" if b else "0" for b in mask[i : i + 4]), 2) for i in range(0, len(mask), 4)]
    return "".join(f"{digit:x}" for digit in digits)


def row(scores, count):
    """The best `count` tokens of a head, and the tokens near the cut."""
    order = scores.argsort(descending=True, stable=True)
    kept = torch.zeros(len(scores), dtype=torch.bool)
    kept[order[:count]] = True
    cut = scores[order[min(count, len(scores) - 1)]]
    unsure = (scores - cut).abs() <= MARGIN * cut.abs()
    return {"kept": bits(kept.tolist()), "unsure": bits(unsure.tolist())}


def snapkv(model, ids):
    press = Recorder(compression_ratio=1 - SHARE, window_size=WINDOW, kernel_size=1)
    press.recorded = {}
    prefill(model, ids, press)
    return press.recorded


def of_layers(scores, counts):
    return [row(scores[layer][head], counts(layer)[head]) for layer in sorted(scores) for head in range(2)]


def streaming(model, ids):
    press = StreamingLLMPress(compression_ratio=1 - SHARE, n_sink=SINKS)
    scores = press.score(None, None, torch.zeros(1, 2, len(ids), 1), None, None, None)[0]
    rows = [row(head, int(SHARE * TOKENS)) for head in scores]
    for one in rows:
        one["unsure"] = bits([False] * len(ids))
    return rows * model.config.num_hidden_layers


class NoSentence:
    """KVzip's paper puts a sentence before the repeated tokens; ours puts none."""

    def encode(self, *_, **__):
        return torch.zeros(1, 0, dtype=torch.long)


def kvzip(model, ids):
    section = ids[:SECTION]
    press = KVzipPress(compression_ratio=1 - SECTION_SHARE, n_sink=SINKS)
    press._context_ids = torch.tensor([section])
    press._suffix_ids = torch.zeros(1, 0, dtype=torch.long)
    press._cache = prefill(model, section)
    with torch.no_grad():
        press._perform_kvzip_compression(model, NoSentence())
    rows = press.score_val[:, 0].reshape(-1, SECTION).clone()
    for layer in model.model.layers:
        layer.self_attn.masked_key_indices = None
    # Whole pages: a row gives up its worst PAGE tokens, and the page whose best token is the worst of all rows goes
    # first. Protected tokens are never given up.
    ranked = rows.sort(dim=-1).values.reshape(len(rows), -1, PAGE)  # worst tokens first
    best_of_page = [(float(ranked[r, p, -1]), r) for r in range(len(rows)) for p in range(ranked.shape[1])]
    best_of_page.sort()
    gone = round((1 - SECTION_SHARE) * len(best_of_page))
    lead = best_of_page[gone][0] / best_of_page[gone - 1][0] - 1
    assert lead > MARGIN, f"the cut between pages is close ({lead}): take another text"
    lost = [0] * len(rows)
    for _, r in best_of_page[:gone]:
        lost[r] += PAGE
    return [row(scores, SECTION - n) for scores, n in zip(rows, lost)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="sdpa").eval()
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(pass_positions, with_kwargs=True)
    cases = json.loads((args.out.parent / "tessera_tiny.json").read_text())["cases"]
    ids = [token for case in cases for token in case["ids"] + case["greedy_ids"]][:TOKENS]
    assert len(ids) == TOKENS
    scores = snapkv(model, ids)
    presets = {
        "snapkv": of_layers(scores, lambda _: [int(SHARE * TOKENS)] * 2),
        "streaming": streaming(model, ids),
        "replay-50:scorer=replay:high=f16:low=f16": kvzip(model, ids),
    }
    args.out.write_text(json.dumps({"ids": ids, "section": SECTION, "presets": presets}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
