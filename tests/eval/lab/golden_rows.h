#pragma once

#include <string_view>

namespace tessera::lab {

// Expects the rows and the bytes that an oracle has for a method, after the golden prompt's first
// tokens and all others, which are read as generated ones. NAME.json holds cases, as row_parts.py
// writes them.
void expect_rows_as_golden(std::string_view name);

}  // namespace tessera::lab
