"""Trains the model in stages; resumes at the last saved state.

    torchrun --nproc-per-node 2 train.py RUN --data DATA          (RUN/tokenizer.model must exist)

There is one process per core. Processes synchronise once per step, to add their gradients. Threads
would synchronise at every operation and wait for each other on a shared machine. The results are
the same for any number of processes that divides a stage's rows, up to the samples drawn.
RUN/state.pt holds weights and optimizer; RUN/log.jsonl the curve. A stage is a context length, a
mixture of tasks and a number of tokens. Recall is learnt on short rows that are nearly all
questions, then extended to longer ones.
"""

import argparse
import json
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from batches import Batch, Packer
from corpus import read_corpus
from haystack import Haystack
from material import Material, Vocabulary
from model import Llama, Shape, token_losses
from recall import quick_recall
from tokenizer import Tokenizer


@dataclass(frozen=True)
class Stage:
    length: int
    rows: int  # per batch
    tokens: float  # in millions
    mixture: dict[str, float]


STAGES = (
    Stage(128, 32, 1.6, dict(text=0.2, story=0.15, repeat=0.15, dense=0.42, copy=0.05, count=0.03)),
    Stage(256, 32, 2.0, dict(text=0.35, story=0.2, repeat=0.03, dense=0.34, copy=0.05, count=0.03)),
    Stage(512, 16, 2.2, dict(text=0.35, story=0.2, repeat=0.03, dense=0.2, sparse=0.14, copy=0.04, count=0.04)),
    Stage(1024, 8, 2.8, dict(text=0.35, story=0.2, repeat=0.03, dense=0.15, sparse=0.2, copy=0.04, count=0.03)),
    Stage(1024, 8, 0.6, dict(text=0.25, story=0.15, dense=0.35, sparse=0.18, copy=0.04, count=0.03)),
    Stage(2048, 4, 1.9, dict(text=0.25, story=0.15, dense=0.35, sparse=0.2, copy=0.03, count=0.02)),
)
TOTAL = 1_000_000 * sum(stage.tokens for stage in STAGES)
DECAY = 0.4  # the rates fall to zero over this last share of the tokens
WARM_UP = 100  # steps
RATES = (0.01, 0.008, 0.002)  # of the three optimizers below
HEAD_PIECE = 1024  # positions
SAVE_SECONDS = 120
MEASURE_STEPS = 200


class Trainer:
    def __init__(self, run: Path, data: Path, seed: int):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self.run, self.seed, self.rank, self.ranks = run, seed, dist.get_rank(), dist.get_world_size()
        self.model = Llama(Shape())
        self.body = torch.compile(self.model, dynamic=False)
        self.head = torch.compile(token_losses, dynamic=False)
        self.optimizers = optimizers(self.model)
        self.sizes = [p.numel() for p in self.model.parameters()]
        self.step, self.tokens, self.saved = 0, 0, time.time()
        corpus, held_out = read_corpus(data)
        self.tokenizer = Tokenizer(run / "tokenizer.model")
        self.words = Vocabulary.of(corpus)
        self.corpus, self.held_out = corpus, held_out
        self.losses, self.clock = defaultdict(list), time.time()

    def save(self):
        if self.rank:
            return
        state = dict(model=self.model.state_dict(), step=self.step, tokens=self.tokens)
        state["optimizers"] = [optimizer.state_dict() for optimizer in self.optimizers]
        torch.save(state, self.run / "state.tmp")
        (self.run / "state.tmp").rename(self.run / "state.pt")
        self.saved = time.time()

    def resume(self):
        state = torch.load(self.run / "state.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        self.step, self.tokens = state["step"], state["tokens"]

    def stages(self):
        begin = 0
        for index, stage in enumerate(STAGES):
            end = begin + int(stage.tokens * 1_000_000)
            if self.tokens < end:
                self.stage(stage, end, index)
            begin = end
        self.save()

    def stage(self, stage: Stage, end: int, index: int):
        # The step is part of the seed: a resumed run draws new samples instead of repeating the
        # first ones.
        seed = (self.seed + 1000 * index + self.step) * self.ranks + self.rank
        packer = Packer(Material(self.tokenizer, self.corpus, self.words, False, seed), stage.mixture)
        while self.tokens < end:
            left = max(0.0, 1 - self.tokens / TOTAL)
            self.set_rate(min(1.0, (self.step + 1) / WARM_UP, left / DECAY))
            self.learn(packer.batch(stage.rows // self.ranks, stage.length))
            if self.step % 25 == 0:
                self.report(stage)
            if self.step % MEASURE_STEPS == 0:
                self.measure(stage)
            if time.time() - self.saved > SAVE_SECONDS:
                self.save()

    def set_rate(self, factor: float):
        for optimizer, rate in zip(self.optimizers, RATES):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor

    def learn(self, batch: Batch):
        weights = torch.from_numpy(batch.weights).flatten()
        total = weights.sum()
        dist.all_reduce(total)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = self.body(torch.from_numpy(batch.inputs)).flatten(0, 1)
            loss, losses = self.weighted_loss(hidden, torch.from_numpy(batch.targets).flatten(), weights)
        (loss / total).backward()
        gradients = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(gradients)
        torch._foreach_copy_([p.grad.view(-1) for p in self.model.parameters()], gradients.split(self.sizes))
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step, self.tokens = self.step + 1, self.tokens + batch.inputs.size * self.ranks
        for task, row in zip(batch.tasks, losses.view(batch.inputs.shape)):
            if (row > 0).any():
                self.losses[task].append(row[row > 0].mean().item())

    def weighted_loss(self, hidden, targets, weights):
        """Returns the weighted sum, and the loss of every position.

        Positions without weight skip the head. The head is compiled for pieces of one size,
        so that no batch causes another compilation.
        """
        loss, losses = 0.0, torch.zeros_like(weights)
        for where in weights.nonzero().squeeze(1).split(HEAD_PIECE):
            piece = torch.cat((where, where[:1].expand(HEAD_PIECE - len(where))))
            logits_loss = self.head(hidden[piece], self.model.embed_tokens.weight, targets[piece])[: len(where)]
            loss = loss + (logits_loss * weights[where]).sum()
            losses[where] = logits_loss.detach()
        return loss, losses

    def report(self, stage: Stage):
        elapsed, self.clock = time.time() - self.clock, time.time()
        means = {task: round(sum(values) / len(values), 3) for task, values in sorted(self.losses.items())}
        self.losses.clear()
        self.log(dict(length=stage.length, seconds=round(elapsed, 1), loss=means))

    def measure(self, stage: Stage):
        """Measures held-out recall at this stage's length; every process has its own questions."""
        haystack = Haystack(Material(self.tokenizer, self.held_out, self.words, True, seed=7 + self.rank))
        rows = stage.rows // self.ranks
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            recall = quick_recall(lambda ids: self.model.logits(self.body(ids)), haystack, rows, stage.length)
        shares = torch.tensor(list(recall.values()))
        dist.all_reduce(shares)
        self.log(dict(length=stage.length, recall=dict(zip(recall, (shares / self.ranks).tolist()))))
        self.clock = time.time()

    def log(self, entry: dict):
        if self.rank:
            return
        entry = dict(time=time.strftime("%H:%M:%S"), step=self.step, tokens=self.tokens) | entry
        print(json.dumps(entry), flush=True)
        with open(self.run / "log.jsonl", "a") as log:
            log.write(json.dumps(entry) + "\n")


def optimizers(model: Llama) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the embedding and for the norms."""
    matrices = [p for p in model.layers.parameters() if p.ndim == 2]
    norms = [p for p in model.parameters() if p.ndim == 1]
    muon = torch.optim.Muon(matrices, lr=RATES[0], weight_decay=0.05, momentum=0.95)
    adam = dict(betas=(0.9, 0.95), weight_decay=0.0)
    embedding = torch.optim.AdamW([model.embed_tokens.weight], lr=RATES[1], **adam)
    return [muon, embedding, torch.optim.AdamW(norms, lr=RATES[2], **adam)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    trainer = Trainer(args.run, args.data, args.seed)
    if (args.run / "state.pt").exists():
        trainer.resume()
    trainer.stages()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
