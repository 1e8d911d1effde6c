"""CompressKV: heads that attend around repeated tokens choose, and layers share by their errors of eviction."""

import numpy as np

from oracle_parts import attention, best, head_of, head_profile, mean_pool, window_rows


def error(prompt, layer, stays, before):
    change = whole = 0
    for head in range(prompt.heads):
        values = head_of(prompt, layer, "values", head * prompt.kv_heads // prompt.heads).astype(np.float64)
        weights = attention(prompt, layer, head)[before:]
        rest = weights * np.isin(np.arange(len(prompt.ids)), stays)
        full = weights @ values
        change += ((full - rest @ values / rest.sum(axis=1, keepdims=True)) ** 2).sum()
        whole += (full ** 2).sum()
    return np.sqrt(change / whole)


def budgets_of(errors, mean, least, most):
    """As the authors' error_aware_layer_budget_allocation, with shares of the errors."""
    importance, total = np.array(errors) / sum(errors), mean * len(errors)
    budgets = np.clip(least + np.round(importance * (total - least * len(errors))), least, most).astype(int)
    while budgets.sum() != total:
        step = 1 if budgets.sum() < total else -1
        for layer in np.argsort(-step * importance, kind="stable"):
            if budgets.sum() != total and least <= budgets[layer] + step <= most:
                budgets[layer] += step
    return budgets


def kept(prompt, budget, heads, window, least, period):
    tokens = len(prompt.ids)
    before, mean, around = tokens - window, int(budget * tokens), head_profile(prompt, period)[2]
    recent, scores, errors = list(range(before, tokens)), [], []
    for layer in range(len(prompt.layers)):
        rows = window_rows(prompt, layer, window)
        scores.append(sum(mean_pool(rows[head]) for head in best(around[layer], heads)))
        errors.append(error(prompt, layer, best(scores[-1], mean - window) + recent, before))
    budgets = budgets_of(errors, mean, least, min(3 * mean, tokens))
    return [[best(scores[layer], budgets[layer] - window) + recent] * prompt.kv_heads
            for layer in range(len(prompt.layers))]


def golden(prompt):
    return {"budget=0.25:heads=2:least=12:period=24": kept(prompt, 0.25, 2, 8, 12, 24),
            "budget=0.5:heads=1:least=16:window=16:period=24": kept(prompt, 0.5, 1, 16, 16, 24)}
