"""KV events, read as a router reads them."""

import time

import msgpack
import zmq

from fleet import Repeated


class Subscriber:
    """A router's view of one replica: the blocks that were stored and not removed."""

    def __init__(self, endpoint, binds=False):
        self._blocks = {}  # block: (its parent, its tokens)
        self.copies = {"CPU": set(), "DISK": set()}  # blocks in the tiers below the cache
        self.numbers, self.topics, self.events, self.block_tokens = [], set(), 0, None
        self.strict = False
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.bind(endpoint) if binds else self._socket.connect(endpoint)
        self._reader = Repeated(self._read_next)

    @property
    def blocks(self):
        """Raises the reader's exception again, so that no test waits for events that nothing reads."""
        self._reader.check()
        return self._blocks

    def _read_next(self):
        if self._socket.poll(50):
            self._read(*self._socket.recv_multipart())

    def _read(self, topic, number, message):
        self.topics.add(topic.decode())
        self.numbers.append(int.from_bytes(number, "big"))
        seconds, events, *rest = msgpack.unpackb(message, strict_map_key=True)
        assert abs(time.time() - seconds) < 60 and rest in ([], [0])
        for kind, hashes, *fields in events:
            self.events += 1
            if fields[-1] is not None:
                self._read_copies(kind, hashes, fields)
                continue
            if kind == "BlockStored":
                parent, tokens, self.block_tokens, lora, medium = fields
                assert lora is None and medium is None
                assert len(tokens) == len(hashes) * self.block_tokens
                for place, block in enumerate(hashes):
                    assert 0 < block < 1 << 64 and block not in self._blocks
                    assert parent is None or parent in self._blocks or not self.strict
                    own = tokens[place * self.block_tokens:][:self.block_tokens]
                    self._blocks[block] = parent, own
                    parent = block
            else:
                assert kind == "BlockRemoved" and fields == [None]
                for block in hashes:
                    assert block in self._blocks or not self.strict
                    self._blocks.pop(block, None)

    def _read_copies(self, kind, hashes, fields):
        copies = self.copies[fields[-1]]
        if kind == "BlockStored":
            assert fields[:2] == [None, []], "a copy is known by its block's name"
            copies.update(hashes)
        else:
            assert kind == "BlockRemoved" and (copies.issuperset(hashes) or not self.strict)
            copies.difference_update(hashes)

    def cached(self, tokens):
        """Returns how many of these tokens the replica has, by the events."""
        paths = {(parent, tuple(own)): block for block, (parent, own) in self.blocks.items()}
        found, parent = 0, None
        while (parent := paths.get((parent, tuple(tokens[found:][:self.block_tokens])))) is not None:
            found += self.block_tokens
        return found

    def end(self):
        self._reader.end()
        self._socket.close()
        assert self.numbers == [self.numbers[0] + place for place in range(len(self.numbers))]
