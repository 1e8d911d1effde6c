""
    "Writes quantised.json: hashes of packed tensors, and logits of a small Llama with their weights.

    pip install torch transformers accelerate compressed -
    tensors; pip download --no-deps autoawq==0.2.9 auto-gptq==0.7.1
    python tests/models/quantised/golden.py AUTOAWQ_FOLDER AUTO_GPTQ_FOLDER   # both unpacked

Integers, zero points and scales follow from number(), which the test computes too. Each method's own
package packs or unpacks them: compressed-tensors packs, AutoGPTQ packs and dequantises, AutoAWQ
dequantises the packed weights. transformers computes the logits in f32 from the dequantised weights.
"""

import importlib.util
import json
import logging
import sys
from pathlib import Path

import numpy as np
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from transformers import LlamaConfig, LlamaForCausalLM

HIDDEN, FFN, KV, VOCAB = 128, 256, 64, 96
MODULES = [("self_attn.q_proj", HIDDEN, HIDDEN), ("self_attn.k_proj", KV, HIDDEN), ("self_attn.v_proj", KV, HIDDEN),
           ("self_attn.o_proj", HIDDEN, HIDDEN), ("mlp.gate_proj", FFN, HIDDEN), ("mlp.up_proj", FFN, HIDDEN),
           ("mlp.down_proj", HIDDEN, FFN)]
TOKENS = [i * 37 % VOCAB for i in range(24)]
POSITIONS = [0, 7, 23]


def ct(bits, group, symmetric, **more):
    weights = dict(num_bits=bits, type=more.pop("type", "int"), symmetric=symmetric, group_size=group,
                   strategy="channel" if group == -1 else "group", **more)
    kind = "float-quantized" if weights["type"] == "float" else "int-quantized" if more.get("plain") else "pack-quantized"
    weights.pop("plain", None)
    return dict(quant_method="compressed-tensors", format=kind, ignore=["lm_head"],
                config_groups={"group_0": dict(targets=["Linear"], weights=weights, input_activations=None)})


def gptq(bits, group, **more):
    return dict(quant_method="gptq", bits=bits, group_size=group, **more)


AWQ = dict(quant_method="awq", bits=4, group_size=128, zero_point=True, version="gemm")
#bits, group(0 : all inputs), zero points, order of inputs, type of scales, scale_outputs
CASES = [
    ("w4a16_groups_of_128", ct(4, 128, True), dict(bits=4, group=128, scales="BF16", small_rows=True)),
    ("w4a16_asymmetric", ct(4, 32, False), dict(bits=4, group=32, zeros=True, scales="F16")),
    ("w4a16_act_order", ct(4, 64, True, actorder="group"), dict(bits=4, group=64, order=True, scales="BF16")),
    ("w8a16_groups_of_64", ct(8, 64, True), dict(bits=8, group=64, scales="F16")),
    ("w8a8", ct(8, -1, True, plain=True), dict(bits=8, group=0, scales="F32", bytes=True)),
    ("fp8_of_outputs", ct(8, -1, True, type="float"), dict(bits=8, group=0, scales="BF16", fp8=True)),
    ("awq", AWQ, dict(bits=4, group=128, zeros=True, scales="F16")),
    ("gptq", gptq(4, 128, desc_act=False, sym=True), dict(bits=4, group=128, scales="F16")),
    ("gptq_act_order", gptq(4, 32, desc_act=True, sym=False), dict(bits=4, group=32, zeros=True, order=True, scales="F16")),
    ("gptq_v2_8_bits", gptq(8, -1, desc_act=False, sym=True, checkpoint_format="gptq_v2"), dict(bits=8, group=0, scales="F16")),
    ("fp8_blocks", dict(quant_method="fp8", fmt="e4m3", weight_block_size=[128, 128], activation_scheme="dynamic"),
     dict(bits=8, group=128, scales="F32", fp8=True, scale_outputs=128)),
    ("fp8_of_tensors", dict(quant_method="fp8", activation_scheme="static"),
     dict(bits=8, group=0, scales="F32", fp8=True, scale_outputs=0)),
]


def number(stream, count):
    x = np.arange(count, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(stream * 40503 + 12345)
    for shift, factor in ((15, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return (x ^ (x >> np.uint32(16))).astype(np.int64)


class Matrix:
    def __init__(self, index, rows, cols, case):
        self.rows, self.cols, self.case = rows, cols, case
        self.group = min(case["group"] or cols, cols)
        self.groups = cols // self.group
        outputs = case.get("scale_outputs", 1) or rows
        codes = number(4 * index, rows * cols).reshape(rows, cols) % (1 << case["bits"])
        if case.get("fp8"):
            codes = np.where(codes % 128 == 127, codes - 1, codes)  # no NaN
        self.codes = codes
        scale_rows = -(-rows // outputs)
        exponent = -13 if case["bits"] == 4 else -17
        scales = (64 + number(4 * index + 2, scale_rows * self.groups) % 64) * 2.0 ** exponent
        self.scales = scales.reshape(scale_rows, self.groups)
        if case.get("small_rows"):
            self.scales[::5] *= 2.0 ** -14
        self.outputs = outputs
        middle = 1 << (case["bits"] - 1)
        zeros = 1 + number(4 * index + 1, rows * self.groups) % 15 if case.get("zeros") else np.full(rows * self.groups, middle)
        self.zeros = zeros.reshape(rows, self.groups)
        order = np.argsort(number(4 * index + 3, cols), kind="stable") if case.get("order") else np.arange(cols)
        self.g_idx = np.empty(cols, np.int64)
        self.g_idx[order] = np.arange(cols) // self.group

    def weight(self):
        scales = np.repeat(self.scales, self.outputs, 0)[:self.rows][:, self.g_idx].astype(np.float32)
        if self.case.get("fp8"):
            values = torch.from_numpy(self.codes.astype(np.uint8)).view(torch.float8_e4m3fn).float().numpy()
        else:
            values = (self.codes - self.zeros[:, self.g_idx]).astype(np.float32)
        return values * scales


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def pack_awq(matrix):
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    def pack(numbers):  # [n, rows]
        words = np.zeros((numbers.shape[0], numbers.shape[1] // 8), np.uint32)
        for place, neighbour in enumerate(order):
            words |= numbers[:, neighbour::8].astype(np.uint32) << np.uint32(4 * place)
        return words.view(np.int32)
    packed = dict(qweight=pack(matrix.codes.T), qzeros=pack(matrix.zeros.T))
    found = AWQ_UTILITIES.dequantize_gemm(torch.from_numpy(packed["qweight"]), torch.from_numpy(packed["qzeros"]),
                                          torch.from_numpy(matrix.scales.T.copy()).float(), 4, matrix.group)
    assert np.array_equal(found.numpy().T, matrix.weight())
    return packed


def pack_gptq(matrix, config):
    bits, group = config["bits"], config["group_size"]
    layer = GPTQ.QuantLinear(bits, group, matrix.cols, matrix.rows, False, weight_dtype=torch.float32)
    linear = torch.nn.Linear(matrix.cols, matrix.rows, bias=False)
    linear.weight.data = torch.from_numpy(matrix.weight())
    scales = torch.from_numpy(matrix.scales).float()
    layer.pack(linear, scales, torch.from_numpy(matrix.zeros).float(), torch.from_numpy(matrix.g_idx).int())
    found = layer(torch.eye(matrix.cols)).detach().numpy().T
    assert np.array_equal(found, matrix.weight())
    qzeros = layer.qzeros.numpy()
    if config.get("checkpoint_format") == "gptq_v2":  # stores zero points, not one less
        qzeros = (qzeros.view(np.uint32) + np.uint32(0x01010101)).view(np.int32)
    return dict(qweight=layer.qweight.numpy(), qzeros=qzeros)


def pack_ct(matrix):
    bits = matrix.case["bits"]
    signed = torch.from_numpy(matrix.codes - (1 << (bits - 1))).to(torch.int8)
    if matrix.case.get("bytes"):
        return dict(weight=signed.numpy())
    packed = dict(weight_packed=pack_to_int32(signed, bits).numpy())
    if matrix.case.get("zeros"):
        zeros = torch.from_numpy(matrix.zeros - (1 << (bits - 1))).to(torch.int8)
        packed["weight_zero_point"] = pack_to_int32(zeros, bits, packed_dim=0).contiguous().numpy()
    return packed


def packed_tensors(matrix, config):
    method = config["quant_method"]
    if matrix.case.get("fp8"):
        return dict(weight=matrix.codes.astype(np.uint8))
    return pack_awq(matrix) if method == "awq" else pack_gptq(matrix, config) if method == "gptq" else pack_ct(matrix)


def model_config():
    return LlamaConfig(vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=1,
                       num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=128,
                       rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False, attn_implementation="eager")


def logits_of(matrices):
    model = LlamaForCausalLM(model_config()).eval()
    weights = dict(model.named_parameters())
    for _, norm in filter(lambda one: one[1].dim() == 1, weights.items()):
        norm.data.fill_(1.0)
    for name, stream, scale in (("model.embed_tokens.weight", 1000, 128.0), ("lm_head.weight", 1001, 1024.0)):
        values = (number(stream, VOCAB * HIDDEN) % 256 - 128) / scale
        weights[name].data = torch.from_numpy(values.reshape(VOCAB, HIDDEN).astype(np.float32))
    for (name, _, _), matrix in zip(MODULES, matrices):
        weights[f"model.layers.0.{name}.weight"].data = torch.from_numpy(matrix.weight())
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0, POSITIONS].numpy()


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    cases = []
    for name, config, case in CASES:
        matrices = [Matrix(index, rows, cols, case) for index, (_, rows, cols) in enumerate(MODULES)]
        hashes = {}
        for matrix in matrices:
            for suffix, tensor in packed_tensors(matrix, config).items():
                hashes.setdefault(suffix, []).append(f"{fnv(np.ascontiguousarray(tensor).tobytes()):016x}")
        weights = [f"{fnv(np.ascontiguousarray(matrix.weight()).tobytes()):016x}" for matrix in matrices]
        logits = [[float(f"{value:.7g}") for value in row] for row in logits_of(matrices)]
        cases.append(dict(name=name, config=config, case=case, packed=hashes, weights=weights, logits=logits))
    path = Path(__file__).resolve().parents[2] / "golden" / "quantised.json"
    path.write_text(json.dumps(dict(tokens=TOKENS, positions=POSITIONS, cases=cases), indent=0) + "\n")


logging.disable(logging.WARNING)
AWQ_UTILITIES = load(Path(sys.argv[1]) / "awq/utils/packing_utils.py")
GPTQ = load(Path(sys.argv[2]) / "auto_gptq/nn_modules/qlinear/qlinear_cuda.py")
main()
