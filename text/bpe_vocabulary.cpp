#include "text/bpe_vocabulary.h"

namespace tessera {

void BpeVocabulary::encode_symbols(std::vector<BpeSymbol>& symbols,
                                   std::vector<int32_t>& ids_out) const {
  if (symbols.empty()) return;
  merge_symbols(symbols,
                [this](const BpeSymbol& left, const BpeSymbol& right) -> std::optional<BpeMerge> {
                  if (left.id < 0 || right.id < 0) return std::nullopt;
                  const auto found = merges.find(merge_key(left.id, right.id));
                  if (found == merges.end()) return std::nullopt;
                  return found->second;
                });
  bool after_unknown = false;
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    const int32_t id = symbols[static_cast<size_t>(i)].id;
    if (id >= 0) {
      ids_out.push_back(id);
    } else if (unknown && !(fuse_unknown && after_unknown)) {
      ids_out.push_back(*unknown);
    }
    after_unknown = id < 0;
  }
}

}  // namespace tessera
