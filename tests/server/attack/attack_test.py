"""Attacks on a server, with the shipped model: python3 attack_test.py SERVER [SECONDS | TEST...].

Needs only Python. Each test is one attack that once stopped or filled a server. SECONDS: repeats
all of them for this long, with the numbers that were found to work, in a random order whose seed is
printed. Without it the numbers are smaller.
"""

import random
import sys
import time
import unittest

from attack_case import WHOLE
from grpc_attacks import Calls, Messages
from request_attacks import Chats, Fields, Framing, Tls
from resource_attacks import Descriptors, Memory, Start
from shared_attacks import Conversations, Grammars, Names, Rates
from stop_attacks import Stop
from sum_attacks import Sum
from tenant_attacks import OneTenant, Tenants
from time_attacks import Queue, Threads, Time

CASES = (Calls, Chats, Conversations, Descriptors, Fields, Framing, Grammars, Memory, Messages, Names, OneTenant, Queue,
         Rates, Start, Stop, Sum, Tenants, Threads, Time, Tls)


def attacks():
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    return [load(case) for case in CASES]


def repeat(seconds):
    """Runs the attacks again and again. Returns True if all were survived."""
    seed = int(time.time())
    print("seed", seed, file=sys.stderr)
    order = random.Random(seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        cases = attacks()
        order.shuffle(cases)
        if not unittest.TextTestRunner(verbosity=1).run(unittest.TestSuite(cases)).wasSuccessful():
            return False
    return True


if __name__ == "__main__":
    if WHOLE:
        sys.exit(0 if repeat(int(sys.argv[2])) else 1)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
