"""Expected Attention by kvpress."""

from kvpress import ExpectedAttentionPress

from oracle_parts import kept_by_press


def golden(prompt):
    return {"budget=0.25": kept_by_press(prompt, ExpectedAttentionPress(compression_ratio=0.75)),
            "budget=0.5:future=16:sinks=2": kept_by_press(
                prompt, ExpectedAttentionPress(compression_ratio=0.5, n_future_positions=16, n_sink=2))}
