#!/usr/bin/env python3
"""machine_code.py finds a spill, a generic load, a wait for a load, and a value over its bound."""

import re
import unittest

import machine_code

# In the form of `cuobjdump -sass`: a prologue, a loop with two loads and a product, an early exit,
# the branch to itself and the padding behind every kernel.
SASS = """
\t\tFunction : _Z1kPKv
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   S2R R1, SR_TID.X ;                          /* 0x0000000000017919 */
                                                                               /* 0x000e220000002100 */
        /*0010*/              @!P0 EXIT ;                                      /* 0x000000000000894d */
        /*0020*/                   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;   /* 0x0000000402047981 */
        /*0030*/                   LDG.E.128.CONSTANT R8, desc[UR4][R2.64+0x10] ; /* 0x0000100402087981 */
        /*0040*/                   IADD3 R2, P0, R2, 0x40, RZ ;                /* 0x0000004002027810 */
        /*0050*/                   IMMA.16832.U8.S8 R12, R4.ROW, R16.COL, R12 ; /* 0x000000100c0c7237 */
        /*0060*/               @P1 BRA 0x20 ;                                  /* 0xfffffffc00001947 */
        /*0070*/                   EXIT ;                                      /* 0x000000000000794d */
        /*0080*/                   BRA 0x80;                                   /* 0xfffffffc00fc7947 */
        /*0090*/                   NOP;                                        /* 0x0000000000007918 */
"""
FIRST_LOAD = "LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ; "
BOUNDS = """
# a comment
object kernel registers stack spills generic instructions tile loads
o k 20 0 0 0 8 5 2
"""


def measure(sass, registers=20, stack=0):
    (code,) = machine_code.functions_of(sass).values()
    return machine_code.measure(code, registers, stack)


def violations(values):
    ((_, kernel, bounds),) = machine_code.read_bounds(BOUNDS)
    return list(machine_code.violations(kernel, values, bounds))


class MachineCode(unittest.TestCase):
    def test_counts_what_a_kernel_executes(self):
        self.assertEqual(measure(SASS), {
            "registers": 20, "stack": 0, "spills": 0, "generic": 0, "instructions": 8, "tile": 5,
            "loads": 2})
        self.assertEqual(violations(measure(SASS)), [])

    def test_finds_a_spill(self):
        spilled = SASS.replace("IADD3 R2, P0, R2, 0x40, RZ", "STL.64 [R1+0x8], R12")
        self.assertEqual(violations(measure(spilled)), ["k: spills 1, at most 0"])
        self.assertEqual(violations(measure(SASS, stack=8)), ["k: stack 8, at most 0"])

    def test_finds_a_generic_load(self):
        generic = SASS.replace(FIRST_LOAD, "LD.E.128 R4, desc[UR4][R2.64] ;")
        self.assertEqual(violations(measure(generic)), ["k: generic 1, at most 0"])

    def test_finds_a_load_that_waits_for_the_load_before_it(self):
        for waits in ("IADD3 R20, P0, R7, 0x10, RZ", "LDG.E R20, desc[UR4][R6.64]",
                      "MOV R5, RZ"):
            late = SASS.replace(FIRST_LOAD, FIRST_LOAD + "\n /*0028*/ " + waits + " ; ")
            self.assertEqual(measure(late)["loads"], 1, waits)
        passed = SASS.replace(FIRST_LOAD, FIRST_LOAD + "\n /*0028*/ MOV R20, R3 ; ")
        self.assertEqual(measure(passed)["loads"], 2)

    def test_copies_to_shared_memory_are_in_flight_until_a_wait(self):
        copies = re.sub(r"LDG.E.128.CONSTANT R\d+,", "LDGSTS.E.BYPASS.128 [R4],", SASS)
        self.assertEqual(measure(copies)["loads"], 2)
        for later, loads in ((0, 2), (1, 4), (2, 6)):
            waits = copies.replace("IADD3 R2, P0", "LDGDEPBAR ;\n /*0048*/ IADD3 R2, P0").replace(
                "LDGSTS", f"DEPBAR.LE SB0, {later:#x} ;\n /*0028*/ LDGSTS", 1)
            self.assertEqual(measure(waits)["loads"], loads, waits)

    def test_finds_values_over_their_bounds(self):
        longer = SASS.replace("IADD3 R2, P0", "IMAD.MOV R3, RZ, RZ, R3 ;\n /*0048*/ IADD3 R2, P0")
        self.assertEqual(violations(measure(longer, registers=24)), [
            "k: registers 24, at most 20", "k: instructions 9, at most 8", "k: tile 6, at most 5"])

    def test_counts_the_path_through_a_tile_and_no_code_beside_it(self):
        beside = SASS.replace("IADD3 R2, P0", "@P2 BRA 0x4c ;\n /*0044*/ MOV R20, R3 ;\n /*0048*/ MOV "
                              "R21, R3 ;\n /*004c*/ IADD3 R2, P0")
        self.assertEqual(measure(beside)["tile"], 6)
        back = SASS.replace("@P1 BRA 0x20", "@P1 BRA 0x20 ;\n /*0064*/ MOV R20, R3 ;\n /*0068*/ BRA 0x40")
        self.assertEqual(measure(back)["tile"], 5)
        copies = beside.replace("MOV R20, R3", "LDGSTS.E.BYPASS.128 [R4], desc[UR4][R2.64]")
        self.assertEqual(measure(copies)["tile"], 8)

    def test_lets_instructions_grow_by_a_hundredth(self):
        bound = {"instructions": 400}
        self.assertEqual(list(machine_code.violations("k", {"instructions": 404}, bound)), [])
        self.assertEqual(len(list(machine_code.violations("k", {"instructions": 405}, bound))), 1)


if __name__ == "__main__":
    unittest.main()
