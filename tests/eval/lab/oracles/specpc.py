"""SpecPC, algorithm 2, with attention by transformers. The draft is the model itself."""

import torch

from shipped_model import by_transformers, packed_logits, tokens_of

PROMPT, TOKENS, WINDOW, KERNEL, NEIGHBOURS, FIRST_LAYER, BUDGET = 150, 153, 16, 8, 6, 2, 0.4


def kept_tokens(model):
    with torch.no_grad():
        attentions = model(torch.tensor([tokens_of(PROMPT)]), output_attentions=True).attentions
    weights = torch.linspace(0, 1, WINDOW)[None, :, None]
    scores = torch.stack([(layer[0, :, -WINDOW:] * weights).amax(dim=(0, 1)) for layer in attentions[FIRST_LAYER:]]).amax(0)
    left = (KERNEL - 1) // 2
    scores = torch.nn.functional.pad(scores, (left, KERNEL - 1 - left))
    scores = torch.nn.functional.max_pool1d(scores[None], KERNEL, stride=1)[0]
    count = int(BUDGET * PROMPT)
    offsets = sorted(range(-((NEIGHBOURS - 1) // 2), NEIGHBOURS - (NEIGHBOURS - 1) // 2), key=abs)
    order = list(range(PROMPT - WINDOW, PROMPT))
    for token in torch.argsort(-scores, stable=True)[:count].tolist():
        order += [min(max(token + offset, 0), PROMPT - 1) for offset in offsets]
    return sorted(list(dict.fromkeys(order))[:count])


def golden(_prompt):
    model = by_transformers()
    kept, ids = kept_tokens(model), tokens_of(TOKENS)
    assert len(kept) == int(BUDGET * PROMPT)
    with torch.no_grad():
        logits = model(torch.tensor([[ids[i] for i in kept] + ids[PROMPT:]])).logits[0].numpy()
    return {f"budget={BUDGET}:window={WINDOW}:kernel={KERNEL}:neighbours={NEIGHBOURS}:first_layer={FIRST_LAYER}": {
        "prompt": PROMPT, "logits": packed_logits(logits[len(kept) - 1:])}}
