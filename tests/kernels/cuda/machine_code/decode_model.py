#!/usr/bin/env python3
"""Predicts decode attention's share of an H200's copy bandwidth from the counts in bounds.txt.

    decode_model.py [TOKENS [ROWS]]    tokens of a sequence (8192); sequences times KV heads (512)

A model, not a measurement. Of earlier kernels it had said 90, 85, 64 and 31 % for f16, k8v4, k4v2 and s70,
and an H100 showed 72, 72, 56 and 42 (docs/measurements/2026-11-28-h100.md). A warp takes tiles of 64
tokens, head_dim 128, GQA 4. Three times bound a tile; the prediction is the root of the sum of their
squares, since they overlap imperfectly:

    memory   the tile's bytes at the multiprocessor's share of the copy bandwidth
    issue    its instructions at the schedulers' rate
    latency  (Little's law) rounds of loads that wait for memory, and the instructions of one warp,
             divided among the warps that a multiprocessor holds. Copies to stages of shared memory run
             while a warp computes, so then the longer of the two counts instead of their sum.

Waves: the warps of a launch fill the multiprocessors several times; the last time is a part, with
fewer warps to hide latency.

The last table has the time of a launch for few rows, by whole splits and by their slices.
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path

from machine_code import read_bounds

# Assumptions, to be replaced by measurements (bench/gpu).
MULTIPROCESSORS = 132
BYTES_A_CLOCK = 18.6  # of a multiprocessor, at the rate of a copy
INSTRUCTIONS_A_CLOCK = 4 * 0.8  # four schedulers, of whose slots a fifth is lost
LATENCY = 800  # clocks of a load from memory under load
CLOCKS_BETWEEN = 3  # two instructions of one warp
CLOCKS_A_MICROSECOND = 1800
SPLIT_TILES = 8  # kMinSplitTiles, for rows of up to 512 tiles
SLICE_TILES = 2  # the same divided by kSlicesOfSplit
SLICE = 150      # instructions between the tiles of two slices, counted by reading (k4v2)
PLACES = 98      # instructions that resolve the places of eight tiles, counted by reading
PARTIAL = 4 * 132 * 4  # bytes of a warp's partial softmaxes, written, then read by the merge
START = 1500           # clocks until the first load of a warp (a guess)
REGISTERS = 65536
WARPS_OF_BLOCK = 4


@dataclass(frozen=True)
class Kernel:
    name: str
    tile_bytes: int
    instructions: float  # of a warp for a tile
    loads: float         # of 16 bytes a lane in flight
    warps: int           # of a multiprocessor
    slice: int = 0       # instructions of a slice
    ahead: int = 0       # bytes of a warp's copies in flight while it computes; 0: loads to registers


# The one kernel for all formats, at commit 92340d5. Its paths cannot be separated by machine_code.py:
# instructions and loads are counted by reading its machine code.
BEFORE = [Kernel("f16", 32768, 2311, 3, 16), Kernel("k8v4", 12800, 1978, 1.5, 16),
          Kernel("k4v2", 6656, 2012, 1, 16), Kernel("s70", 11776, 6000, 2, 16)]
# Kernels of one format. The loop over tiles of s70 has loops inside, so its tile is counted by reading: four
# parts of keys and of values.
NOW = {"f16": "attention_kernel<128,1,F16Rows>", "k8v4": "attention_kernel<128,1,K8V4Rows>",
       "k4v2": "attention_kernel<128,1,K4V2Rows>", "s70": "attention_kernel<128,1,S70Rows>"}
READ = {"s70": 391 + 4 * (239 + 262)}
# Bytes in the stages of a warp, but for the one that it reads.
AHEAD = {"f16": 3 * 2048, "k8v4": 2 * 2048, "k4v2": 2 * 2048, "s70": 0}
# A tile of a shared run, for two sequences at once: the kernels whose loops are whole.
SHARED = {"f16": "attention_kernel<128,2,F16Rows>", "k8v4": "attention_kernel<128,2,K8V4Rows>",
          "k4v2": "attention_kernel<128,2,K4V2Rows>"}


def clocks_of_tile(kernel, warps, partial_bytes=0.0):
    memory = (kernel.tile_bytes + partial_bytes) / BYTES_A_CLOCK
    instructions = kernel.instructions + kernel.slice / SLICE_TILES
    issue = instructions / INSTRUCTIONS_A_CLOCK
    computing = instructions * CLOCKS_BETWEEN
    if kernel.ahead:
        latency = max(kernel.tile_bytes / kernel.ahead * LATENCY, computing)
    else:  # a warp's load brings 512 bytes
        latency = math.ceil(kernel.tile_bytes / 512 / kernel.loads) * LATENCY + computing
    return math.hypot(memory, issue, latency / warps)


def share(kernel, items):
    """Returns: predicted share of the copy bandwidth with `items` warps in the launch."""
    waves, rest = divmod(items / MULTIPROCESSORS, kernel.warps)
    clocks = waves * kernel.warps * clocks_of_tile(kernel, kernel.warps)
    if rest:
        clocks += rest * clocks_of_tile(kernel, rest)
    return items / MULTIPROCESSORS * kernel.tile_bytes / BYTES_A_CLOCK / clocks


def microseconds(kernel, rows, tiles, item_tiles):
    """Returns: predicted time of a launch whose warps take `item_tiles` tiles each."""
    def wave(warps):  # of a multiprocessor; fewer than one: some multiprocessors have none
        warps = max(warps, 1)
        clocks = clocks_of_tile(kernel, warps, 2 * PARTIAL / item_tiles)
        return START + warps * item_tiles * clocks
    full, rest = divmod(rows * math.ceil(tiles / item_tiles) / MULTIPROCESSORS, kernel.warps)
    return (full * wave(kernel.warps) + (wave(rest) if rest else 0)) / CLOCKS_A_MICROSECOND


def kernels_of(names, read):
    bounds = {kernel: values for _, kernel, values in read_bounds(
        (Path(__file__).resolve().parent / "bounds.txt").read_text())}
    for before in BEFORE:
        if counts := bounds.get(names.get(before.name)):
            of_block = 32 * WARPS_OF_BLOCK * 8 * math.ceil(counts["registers"] / 8)
            yield Kernel(before.name, before.tile_bytes,
                         read.get(before.name, counts["tile"]) + round(PLACES / 8), counts["loads"],
                         REGISTERS // of_block * WARPS_OF_BLOCK, SLICE, AHEAD[before.name])


def table(kernels, items):
    print("| format | bytes | instructions | loads in flight | warps | KB in flight | predicted % |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for k in kernels:
        flying = (k.ahead or min(k.loads * 512, k.tile_bytes)) * k.warps / 1000
        print(f"| {k.name} | {k.tile_bytes} | {k.instructions} | {k.loads} | {k.warps} "
              f"| {flying:.0f} | {100 * share(k, items):.0f} |")


def main():
    tokens, rows = (list(map(int, sys.argv[1:])) + [8192, 512][len(sys.argv) - 1:])
    items = rows * math.ceil(tokens / 64 / SPLIT_TILES)
    print(f"{rows} rows of {tokens} tokens: {items} warps\n\nOne kernel for all formats:\n")
    table(BEFORE, items)
    print("\nKernels of one format:\n")
    now = list(kernels_of(NOW, READ))
    table(now, items)
    print("\nA tile that two sequences share, in one kernel of two products:\n")
    print("| format | instructions | of two tiles apart | predicted time, % of apart |")
    print("|---|--:|--:|--:|")
    for both in kernels_of(SHARED, {}):
        own = next(k for k in now if k.name == both.name)
        apart = 2 * clocks_of_tile(own, own.warps)
        print(f"| {both.name} | {both.instructions} | {2 * own.instructions} "
              f"| {100 * clocks_of_tile(both, both.warps) / apart:.0f} |")
    print(f"\nMicroseconds of a launch, {tokens} tokens, 8 KV heads, splits then slices:\n")
    print("| sequences | splits a multiprocessor | " + " | ".join(k.name for k in now) + " |")
    print("|--:|--:|" + "--:|" * len(now))
    tiles = math.ceil(tokens / 64)
    for sequences in (1, 2, 4, 8, 16, 32):
        splits = 8 * sequences * math.ceil(tiles / SPLIT_TILES) / MULTIPROCESSORS
        times = (" then ".join(f"{microseconds(k, 8 * sequences, tiles, item):.0f}"
                               for item in (SPLIT_TILES, SLICE_TILES)) for k in now)
        print(f"| {sequences} | {splits:.1f} | " + " | ".join(times) + " |")


if __name__ == "__main__":
    main()
