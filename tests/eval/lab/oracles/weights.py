"""The weights of keys and values of the golden prompt's model, by layer, [outputs, inputs] each."""

from row_parts import packed


def golden(prompt):
    return [{"keys": packed(layer.self_attn.k_proj.weight.detach().numpy()),
             "values": packed(layer.self_attn.v_proj.weight.detach().numpy())}
            for layer in prompt.model.model.layers]
