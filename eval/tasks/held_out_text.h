#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tessera {

// Short stories written for this purpose and published nowhere else, so that no model was trained
// on them. One story per line, in plain English: a model of any size predicts them better than
// chance.
const std::string& held_out_text();

// Everyday words and first names, from which keys are made.
std::span<const std::string_view> everyday_words();
std::span<const std::string_view> first_names();

}  // namespace tessera
