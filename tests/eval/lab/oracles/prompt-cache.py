"""Prompt Cache, section 3: one pass with a mask."""

import numpy as np

from shipped_model import Matrices, causal, masked_attention, packed_logits, tokens_of

PROMPT, NEW, MODULES, TOKENS = 160, 16, 4, 164


def golden(_prompt):
    module = np.minimum(np.arange(TOKENS) // -(-(PROMPT - NEW) // MODULES), MODULES)
    new = (np.arange(TOKENS) >= PROMPT - NEW)[:, None]
    mask = causal(TOKENS) & (new | (module[:, None] == module[None]))
    logits = Matrices().forward(tokens_of(TOKENS), masked_attention(lambda _layer: mask))
    return {f"modules={MODULES}:new_text={NEW}": {"prompt": PROMPT, "logits": packed_logits(logits[PROMPT - 1:])}}
