#pragma once

#include <xgrammar/xgrammar.h>

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

// The part of a matcher's state that its next mask is computed from, as numbers. xgrammar parses by
// Earley's algorithm: each byte adds a row to a table, and each state names the row in which its
// rule began. A mask depends on the states of the newest row, and on the earlier rows in which it
// ends a rule. So two states have the same mask if they agree in these rows, up to the rows'
// numbers. A key numbers rows in the order in which states name them.
class MaskKey {
 public:
  // Starts a key of no rows for the matcher's state.
  // grammar: its number; masks of other grammars differ.
  void begin(int32_t grammar, const xgrammar::GrammarMatcher& matcher);

  // Adds the next row, the newest first.
  // Returns: false if there is none, or if masks depend on more than the fields of this row.
  bool add_row(const xgrammar::GrammarMatcher& matcher);

  // Returns: the key of all rows that were added.
  std::span<const int32_t> all() const { return fields_; }
  // Returns: the key of the first added rows that contain all of `rows`; empty if one was not
  // added.
  std::span<const int32_t> with(std::span<const int32_t> rows) const;

 private:
  std::vector<int32_t> rows_;      // in the order of their numbers
  std::vector<std::size_t> ends_;  // of the added rows' fields
  std::vector<int32_t> fields_;    // of the key
};

// Notes which rows the library reads on this thread while it exists, but for newer ones.
// Requires: one on a thread at a time.
class RowsRead {
 public:
  explicit RowsRead(const xgrammar::GrammarMatcher& matcher);
  ~RowsRead();
  RowsRead(const RowsRead&) = delete;
  RowsRead& operator=(const RowsRead&) = delete;

  // Returns: each row once. Valid until the next one on this thread begins.
  std::span<const int32_t> rows() const;
};

}  // namespace tessera
