#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

// Scaling of RoPE frequencies for contexts longer than in the model's first training
// (rope_frequencies() in models/config/rope_table.h).
struct RopeScaling {
  enum class Kind : uint8_t { none, linear, dynamic, llama3, yarn, longrope, factors };
  Kind kind = Kind::none;
  float factor = 1;
  float low_freq_factor = 1;  // this and the next: llama3 only
  float high_freq_factor = 4;
  int32_t original_context = 8192;  // llama3, yarn, longrope
  std::vector<float> factors = {};  // factors: [rotary_width() / 2] divisors of the frequencies
  float beta_fast = 32;             // this and the next two: yarn only
  float beta_slow = 1;
  bool whole_pairs = true;                // yarn's ramp begins and ends at a pair
  float attention_factor = 1;             // of cosines and sines: yarn, longrope
  std::vector<float> short_factors = {};  // longrope: likewise, for contexts up to the original
  std::vector<float> long_factors = {};   // longrope: likewise, for longer contexts
  // Queries are scaled by 1 + query_growth * log(1 + floor(position / original_context)).
  float query_growth = 0;
};

}  // namespace tessera
