"""PyramidKV by kvpress."""

from kvpress import PyramidKVPress

from oracle_parts import kept_by_press


def golden(prompt):
    return {"budget=0.25:window=8:beta=3": kept_by_press(
                prompt, PyramidKVPress(compression_ratio=0.75, window_size=8, kernel_size=5, beta=3)),
            "budget=0.5:window=4:beta=20": kept_by_press(
                prompt, PyramidKVPress(compression_ratio=0.5, window_size=4, kernel_size=5, beta=20)),
            "budget=0.25:window=16:beta=20": kept_by_press(
                prompt, PyramidKVPress(compression_ratio=0.75, window_size=16, kernel_size=5, beta=20))}
