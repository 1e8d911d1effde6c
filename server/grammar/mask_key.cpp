#include "server/grammar/mask_key.h"

#include <algorithm>

// deploy/xgrammar.sh adds these two to the library. A row's fields are those of its states: the row
// in which the state's rule began, or -1, and eight more.
int32_t tessera_newest_row(const xgrammar::GrammarMatcher& matcher);
// Returns: false if masks depend on more than the fields.
bool tessera_append_row(const xgrammar::GrammarMatcher& matcher, int32_t row,
                        std::vector<int32_t>& fields);

namespace tessera {
namespace {

constexpr std::size_t kFieldsOfState = 9;
// A mask that needs more rows is computed each time.
constexpr std::size_t kMaxRows = 8;

// The rows that a RowsRead notes on this thread. -1: it notes none.
thread_local int32_t newest_noted = -1;
thread_local std::vector<int32_t> noted;

}  // namespace

void MaskKey::begin(int32_t grammar, const xgrammar::GrammarMatcher& matcher) {
  rows_.assign({tessera_newest_row(matcher)});
  ends_.clear();
  fields_.assign({grammar});
}

bool MaskKey::add_row(const xgrammar::GrammarMatcher& matcher) {
  const std::size_t number = ends_.size();
  if (number == rows_.size() || number == kMaxRows) {
    return false;
  }
  const std::size_t begin = fields_.size() + 1;
  fields_.push_back(0);
  if (!tessera_append_row(matcher, rows_[number], fields_)) {
    fields_.resize(begin - 1);
    return false;
  }
  fields_[begin - 1] = static_cast<int32_t>(fields_.size() - begin);  // so no key begins another's
  for (std::size_t i = begin; i < fields_.size(); i += kFieldsOfState) {
    if (fields_[i] >= 0) {
      const auto place = std::find(rows_.begin(), rows_.end(), fields_[i]);
      if (place == rows_.end()) {
        rows_.push_back(fields_[i]);
        fields_[i] = static_cast<int32_t>(rows_.size()) - 1;
      } else {
        fields_[i] = static_cast<int32_t>(place - rows_.begin());
      }
    }
  }
  ends_.push_back(fields_.size());
  return true;
}

std::span<const int32_t> MaskKey::with(std::span<const int32_t> rows) const {
  std::size_t needed = 1;
  for (const int32_t row : rows) {
    const auto place = std::find(rows_.begin(), rows_.end(), row);
    needed = std::max(needed, static_cast<std::size_t>(place - rows_.begin()) + 1);
  }
  return needed > ends_.size() ? std::span<const int32_t>()
                               : std::span(fields_).first(ends_[needed - 1]);
}

RowsRead::RowsRead(const xgrammar::GrammarMatcher& matcher) {
  noted.clear();
  newest_noted = tessera_newest_row(matcher);
}

RowsRead::~RowsRead() {
  newest_noted = -1;
}

std::span<const int32_t> RowsRead::rows() const {
  return noted;
}

}  // namespace tessera

// The library calls this for each row in which it ends a rule.
extern "C" void tessera_grammar_reads_row(int row) {
  using namespace tessera;
  if (row <= newest_noted && std::find(noted.begin(), noted.end(), row) == noted.end()) {
    noted.push_back(row);
  }
}
