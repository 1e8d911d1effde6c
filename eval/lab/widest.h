#pragma once

// Compiles a function for the widest instruction set of the machine, chosen when the program
// starts.
#define TESSERA_LAB_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
