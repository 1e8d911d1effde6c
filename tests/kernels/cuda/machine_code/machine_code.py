#!/usr/bin/env python3
"""Compares the machine code of hot kernels with the bounds in bounds.txt, without a GPU.

    machine_code.py OBJECTS_DIRECTORY    objects of tessera_cuda, compiled for sm_90a at least

Needs cuobjdump and nvdisasm in PATH (run.sh installs them) and c++filt. Prints the measured table
in the form of bounds.txt. Exit status 1: a kernel exceeds a bound, or is not in the objects.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
FUNCTION = re.compile(r"^\s*Function\s*:?\s*(\S+?):?$")
RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+)")
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+ )?([A-Z][\w.]*)\s*([^;]*);")
REGISTER = re.compile(r"\bR(\d+)\b(\.64)?")
TENSOR_CORE = ("IMMA", "HMMA")
# The first value of a row that may not be smaller; every other value may not be larger.
AT_LEAST = "loads"
MAX_GROUPS = 8  # of copies, that a wait leaves in flight
# Counts of instructions may exceed their bound by 1 %: code beside a kernel moves them by a few.
ROOM = {"instructions": 1.01, "tile": 1.01}


@dataclass(frozen=True)
class Instruction:
    address: int
    name: str  # with its modifiers: LDG.E.128.CONSTANT
    operands: str
    conditional: bool

    def target(self):
        """Returns: address that a branch goes to; None: it is no branch."""
        found = re.search(r"0x([0-9a-f]+)", self.operands) if self.name.startswith("BRA") else None
        return int(found.group(1), 16) if found else None

    def ends(self):
        """Whether the next instruction never follows."""
        return self.name in ("BRA", "EXIT", "RET") and not (self.conditional or "P" in self.operands)

    def is_16_byte_load(self):
        return self.name.startswith(("LDG", "LD.")) and ".128" in self.name

    def is_copy(self):
        """Whether the load is one to shared memory, which runs until a wait (DEPBAR)."""
        return self.name.startswith("LDGSTS")

    def is_work(self):
        return self.name.startswith(TENSOR_CORE) or self.is_copy()

    def destinations(self):
        """Registers that a 16-byte load writes."""
        if self.is_copy():
            return range(0)
        first = int(REGISTER.match(self.operands).group(1))
        return range(first, first + 4)

    def touches(self, registers):
        """Whether an operand names one of the registers."""
        for register, wide in REGISTER.findall(self.operands):
            if int(register) in registers or wide and int(register) + 1 in registers:
                return True
        return False


def functions_of(sass):
    """Returns: instructions of each function of `cuobjdump -sass`, by mangled name."""
    functions, current = {}, None
    for line in sass.splitlines():
        if function := FUNCTION.match(line):
            current = functions.setdefault(function.group(1), [])
        elif current is not None and (found := INSTRUCTION.search(line)):
            current.append(Instruction(int(found.group(1), 16), found.group(3), found.group(4),
                                       found.group(2) is not None))
    for name, instructions in functions.items():  # without the padding behind the last branch
        while instructions and instructions[-1].name == "NOP":
            instructions.pop()
        if instructions and re.match(r"BRA\b", instructions[-1].name):
            instructions.pop()
    return functions


def loads_in_flight(instructions):
    """Returns: most 16-byte loads from one load to the first use of its registers (of a copy to
    shared memory: to the next wait for copies), both branches of a condition taken as one line of
    code."""
    most = 0
    for at, first in enumerate(instructions):
        if not first.is_16_byte_load():
            continue
        own, loads = first.destinations(), 1
        for later in instructions[at + 1:]:
            if later.name in ("EXIT", "RET") or later.touches(own):
                break
            if first.is_copy() and later.name.startswith("DEPBAR"):
                break
            loads += later.is_16_byte_load()
        most = max(most, loads)
    return most


def copies_in_flight(path):
    """Returns: fewest copies of a lane in flight at a wait of a loop, including those waited for. 0: the
    loop has no copies."""
    groups, running = [0], []  # copies of groups not waited for, the last one not ended
    for i in MAX_GROUPS * path:  # the last time with the copies of the times before
        if i.is_copy():
            groups[-1] += 1
        elif i.name == "LDGDEPBAR":
            groups.append(0)
        elif i.name.startswith("DEPBAR"):
            running.append(sum(groups))
            later = int(i.operands.split(",")[1], 16)
            groups = groups[-1 - later:]
    return min(running[-len(running) // MAX_GROUPS:], default=0)


def path_through(instructions, first, last):
    """Returns: instructions of the path from `first` to `last` that passes the most work, and of those
    paths the shortest. Work is products of the tensor cores and copies to shared memory. The path
    follows no branch backwards: code beside a loop does not count, and a loop inside counts once.
    Empty: there is no path."""
    index = {i.address: at for at, i in enumerate(instructions)}
    best = {first: (0, 0, None)}  # of the path to an instruction: work, less its length, the one before
    for at in range(first, last):
        if at not in best:
            continue
        here = instructions[at]
        following = [] if here.ends() else [at + 1]
        if here.target() is not None:
            following.append(index.get(here.target(), -1))
        passed = (best[at][0] + here.is_work(), best[at][1] - 1, at)
        for to in following:
            if to > at:
                best[to] = max(best.get(to, passed), passed)
    path, at = [], last if last in best else None
    while at is not None:
        path.append(instructions[at])
        at = best[at][2]
    return path[::-1]


def tile_path(instructions):
    """Returns: instructions of the path through the longest loop with products of the tensor cores and
    without a loop that has some. That is the loop over tiles if everything inside is unrolled. Empty:
    there is none."""
    index = {i.address: at for at, i in enumerate(instructions)}
    paths = {}
    for at, branch in enumerate(instructions):
        first = index.get(branch.target(), at)
        path = path_through(instructions, first, at) if first < at else []
        if any(i.name.startswith(TENSOR_CORE) for i in path):
            paths[first, at] = path
    inner = [path for loop, path in paths.items() if not any(
        loop[0] <= other[0] and other[1] <= loop[1] for other in paths if other != loop)]
    return max(inner, key=len, default=[])


def measure(instructions, registers, stack):
    def count(*prefixes):
        return sum(i.name.startswith(prefixes) for i in instructions)
    tile = tile_path(instructions)
    return {"registers": registers, "stack": stack, "spills": count("STL", "LDL"),
            "generic": count("LD."), "instructions": len(instructions), "tile": len(tile),
            "loads": copies_in_flight(tile) or loads_in_flight(instructions)}


def short_names(mangled):
    """Returns: mangled names -> `attention_kernel<128,1>`."""
    plain = subprocess.run(["c++filt", "-p"], input="\n".join(mangled), text=True, check=True,
                           capture_output=True).stdout.splitlines()
    short = [re.sub(r"\(anonymous namespace\)|\btessera::|\bcuda::|^void|::(?=\w+_kernel)|[ ]",
                    "", name) for name in plain]
    return dict(zip(mangled, short))


def measured(path):
    """Returns: kernels of one object, by short name."""
    def dump(option):
        return subprocess.run(["cuobjdump", "-arch", "sm_90a", option, path], text=True, check=True,
                              capture_output=True).stdout
    resources, current = {}, None
    for line in dump("--dump-resource-usage").splitlines():
        if function := FUNCTION.match(line):
            current = function.group(1)
        elif found := RESOURCES.search(line):
            resources[current] = (int(found.group(1)), int(found.group(2)))
    functions = functions_of(dump("-sass"))
    names = short_names(list(functions))
    return {names[name]: measure(code, *resources[name]) for name, code in functions.items()}


def read_bounds(text):
    """Returns: rows (object, kernel, {column: bound}) of bounds.txt."""
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    columns = lines[0][2:]
    return [(row[0], row[1], dict(zip(columns, map(int, row[2:])))) for row in lines[1:]]


def violations(kernel, values, bounds):
    for column, bound in bounds.items():
        value = values[column]
        if value < bound if column == AT_LEAST else value > bound * ROOM.get(column, 1):
            word = "at least" if column == AT_LEAST else "at most"
            yield f"{kernel}: {column} {value}, {word} {bound}"


def main():
    bounds = read_bounds((HERE / "bounds.txt").read_text())
    objects = {name: measured(Path(sys.argv[1]) / f"{name}.cu.o")
               for name in dict.fromkeys(row[0] for row in bounds)}
    columns = list(bounds[0][2])
    width = max(len(row[1]) for row in bounds)
    print(f"{'object':20} {'kernel':{width}}", *(f"{c:>12}" for c in columns))
    failed = []
    for name, kernel, bound in bounds:
        values = objects[name].get(kernel)
        if values is None:
            failed.append(f"{name} has no {kernel}; it has {', '.join(objects[name])}")
            continue
        print(f"{name:20} {kernel:{width}}", *(f"{values[c]:12}" for c in columns))
        failed += violations(kernel, values, bound)
    for line in failed:
        print(line, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
