"""SnapKV by kvpress."""

from kvpress import SnapKVPress

from oracle_parts import kept_by_press


def golden(prompt):
    return {"budget=0.25:window=16:kernel=5": kept_by_press(
        prompt, SnapKVPress(compression_ratio=0.75, window_size=16, kernel_size=5))}
