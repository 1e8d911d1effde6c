#pragma once

// Clang 14 supports AVX512-FP16 intrinsics only in files compiled for it as a whole. Inline
// functions of such a file would carry its instructions into other files. So Clang builds, for
// fuzzing and clang-tidy, end at avx512.
#ifndef __clang__
#define TESSERA_COMPILES_FP16
#endif
