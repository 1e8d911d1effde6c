"""Real checkpoints on a machine of 8 GiB, which a control group stands for.

Each model is served with its defaults and gets an agent's first request, of 6,000 tokens if its context has so many.
Then it is started where half of its weights fit, and so is a model of 13 GiB on 8 GiB. Both must be refused with the
bytes that they need and those that are free. Exit status 77: no control group can be made here.

  python3 tests/server/small_machine.py build/release/bin/tessera-server MODEL.gguf...
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
GIB = 1 << 30
MACHINE = 8 * GIB
REQUEST = 6000  # tokens
REFUSAL = re.compile(r"needs (\d+) bytes .* and (\d+) bytes .* are free: ")
TOOL = {"type": "function", "function": {"name": "read_file", "description": "Returns the text of a file.", "parameters": {
    "type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}}}


class Group:
    """A control group of version 2 or 1."""

    def __init__(self, limit):
        top = pathlib.Path("/sys/fs/cgroup")
        self.second = (top / "cgroup.controllers").exists() and "memory" in (top / "cgroup.controllers").read_text()
        self.folder = top / ("" if self.second else "memory") / f"tessera-{os.getpid()}"
        self.folder.mkdir()
        self.file("max", "limit_in_bytes").write_text(str(limit))

    def file(self, second, first):
        return self.folder / f"memory.{second if self.second else first}"

    def enter(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def most(self):
        return int(self.file("peak", "max_usage_in_bytes").read_text())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for _ in range(100):
            with contextlib.suppress(OSError):
                return self.folder.rmdir()
            time.sleep(0.1)


class Server:
    def __init__(self, model, group):
        self.log = tempfile.NamedTemporaryFile()
        self.process = subprocess.Popen([PROGRAM, "--model", model, "--http-port", "0", "--grpc-port", "0"],
                                        stderr=self.log, preexec_fn=group.enter)
        while self.process.poll() is None and "ready after" not in self.text():
            time.sleep(0.05)

    def text(self):
        return pathlib.Path(self.log.name).read_text()

    def ask(self, path, body):
        address = re.search(r"listening (http://\S+)", self.text())[1]
        request = urllib.request.Request(address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request, timeout=600))

    def resident(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def first_request(server):
    """Asks as an agent does: instructions, a tool, and a long file. Returns the tokens of the prompt."""
    line = "def step(state, item):\n    return state.with_item(item) if item.valid() else state\n"
    each = len(server.ask("/tokenize", {"content": line * 64})["tokens"]) / 64
    room = int(re.search(r"a sequence may have (\d+)", server.text())[1]) - 600
    text = line * int(min(REQUEST, room) / each + 1)
    instructions = "You are a coding agent. Read the file and answer in one line.\n" + text
    if "has no chat template" in server.text():
        answer = server.ask("/v1/completions", {"prompt": instructions, "max_tokens": 16})
    else:
        answer = server.ask("/v1/chat/completions", {
            "messages": [{"role": "system", "content": instructions}, {"role": "user", "content": "What does step return?"}],
            "tools": [TOOL], "max_tokens": 16})
    return answer["usage"]["prompt_tokens"], min(REQUEST, room)


def serves(model):
    with Group(MACHINE) as group, Server(model, group) as server:
        if server.process.poll() is not None:
            print(server.text())
            return False
        tokens, least = first_request(server)
        print(f"{pathlib.Path(model).name}: {tokens} tokens were answered on 8 GiB, "
              f"{server.resident() / GIB:.2f} GiB resident, {group.most() / GIB:.2f} GiB of the group at most")
        for line in server.text().splitlines():
            if "sequence may have" in line or " context " in line:
                print(" ", line)
        return tokens >= least and server.process.poll() is None


def refuses(model, limit):
    with Group(limit) as group, Server(model, group) as server:
        found = REFUSAL.search(server.text()) if server.process.poll() not in (None, 0) else None
        print(f"{pathlib.Path(model).name} on {limit >> 20} MiB: {server.text().splitlines()[-1]}")
        return found is not None and int(found[1]) > int(found[2])


def weights_of(model):
    plan = subprocess.run([PROGRAM, "--plan", "--model", model], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"weights.*?(\d+) bytes", plan)[1])


def write_large_model(folder):
    """Writes a checkpoint of 13 GiB whose file is a hole. It is refused before a weight is read."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096,
              "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
              "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
              "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    shapes = {"model.embed_tokens.weight": [32000, 4096], "model.norm.weight": [4096], "lm_head.weight": [32000, 4096]}
    for i in range(32):
        layer = f"model.layers.{i}."
        shapes |= {layer + "input_layernorm.weight": [4096], layer + "post_attention_layernorm.weight": [4096],
                   layer + "self_attn.q_proj.weight": [4096, 4096], layer + "self_attn.k_proj.weight": [1024, 4096],
                   layer + "self_attn.v_proj.weight": [1024, 4096], layer + "self_attn.o_proj.weight": [4096, 4096],
                   layer + "mlp.gate_proj.weight": [14336, 4096], layer + "mlp.up_proj.weight": [14336, 4096],
                   layer + "mlp.down_proj.weight": [4096, 14336]}
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.model", "tokenizer_config.json"):
        shutil.copy(ROOT / "models/checkpoints/tessera-tiny" / name, folder)


def main():
    try:
        with Group(MACHINE):
            pass
    except OSError as error:
        print(f"no control group can be made here: {error}")
        return 77
    failed = 0
    for model in MODELS:
        failed += not serves(model)
        failed += not refuses(model, weights_of(model) // 2)
    with tempfile.TemporaryDirectory() as folder:
        write_large_model(pathlib.Path(folder))
        failed += not refuses(folder, MACHINE)
    print(f"{2 * len(MODELS) + 1 - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    PROGRAM, *MODELS = sys.argv[1:]
    sys.exit(main())
