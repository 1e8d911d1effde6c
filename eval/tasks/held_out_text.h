#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tessera {

// Little stories that were written for this purpose and stand nowhere else, so that no model was
// trained on them. One a line, in plain English: a model of any size predicts them better than
// chance.
const std::string& held_out_text();

// Everyday words and first names, to make keys of.
std::span<const std::string_view> everyday_words();
std::span<const std::string_view> first_names();

}  // namespace tessera
