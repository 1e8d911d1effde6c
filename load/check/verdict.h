#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "load/record/record.h"
#include "load/request/request.h"

namespace tessera::load {

// Planted keys of the last requests. The key of another request in a wrong answer hints at a mix-up
// in the server; a random key of five digits equals one of so few by chance in 0.6 % of cases.
class RecentKeys {
 public:
  void add(const std::string& key, uint64_t session);

  // Returns: the session whose key stands in `text`, if it is another than `session`.
  std::optional<uint64_t> owner_of_other_key(std::string_view text, uint64_t session) const;

 private:
  static constexpr size_t kKept = 512;
  std::unordered_map<std::string, uint64_t> owners_;
  std::deque<std::string> order_;
};

struct Judgement {
  Verdict verdict = Verdict::unchecked;
  std::string why{};  // one sentence; empty if correct
};

// Judges a complete answer: the text against the expectation, and the usage against the tokens that
// were counted and asked for.
Judgement judge(const LoadRequest& request, const Answer& answer, const RecentKeys& keys);

}  // namespace tessera::load
