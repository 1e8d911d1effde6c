#include "load/check/verdict.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/str_cat.h"
#include "load/check/json_schema.h"

namespace tessera::load {
namespace {

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

// Returns: why the usage cannot be true; empty if it can.
std::string usage_violation(const LoadRequest& request, const Answer& answer) {
  if (!answer.usage) {
    return "the stream has no usage";
  }
  const ReportedUsage& usage = *answer.usage;
  if (usage.total_tokens >= 0 &&
      usage.total_tokens != usage.prompt_tokens + usage.completion_tokens) {
    return absl::StrCat("usage: ", usage.prompt_tokens, " + ", usage.completion_tokens,
                        " tokens are not ", usage.total_tokens);
  }
  if (usage.cached_tokens > usage.prompt_tokens) {
    return absl::StrCat("usage: ", usage.cached_tokens, " of ", usage.prompt_tokens,
                        " prompt tokens were cached");
  }
  if (request.expected.prompt_tokens >= 0 &&
      usage.prompt_tokens != request.expected.prompt_tokens) {
    return absl::StrCat("usage: ", usage.prompt_tokens, " prompt tokens, while idle ",
                        request.expected.prompt_tokens);
  }
  // A stop token is counted by some servers, and by others not.
  const int64_t unseen = usage.completion_tokens - answer.counted_tokens;
  const int64_t most_unseen = answer.finish_reason == "stop" ? 1 : 0;
  if (answer.counted_tokens >= 0 && (unseen < 0 || unseen > most_unseen)) {
    return absl::StrCat("usage: ", usage.completion_tokens, " completion tokens, but ",
                        answer.counted_tokens, " came");
  }
  if (answer.finish_reason == "length" && request.ignore_eos && request.max_tokens > 0 &&
      usage.completion_tokens != request.max_tokens) {
    return absl::StrCat("usage: ", usage.completion_tokens, " completion tokens of ",
                        request.max_tokens, " that were asked for");
  }
  return "";
}

size_t first_difference(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                             a.begin());
}

Judgement judge_text(const LoadRequest& request, const Answer& answer, const RecentKeys& keys) {
  const Expectation& expected = request.expected;
  switch (expected.kind) {
    case Expectation::Kind::none:
      return {};
    case Expectation::Kind::contains: {
      if (answer.text.find(expected.text) != std::string::npos) {
        return {Verdict::correct};
      }
      if (const auto other = keys.owner_of_other_key(answer.text, request.session)) {
        return {Verdict::missed, absl::StrCat("the answer has the key of session ", *other)};
      }
      return {Verdict::missed, absl::StrCat("'", expected.text, "' is not in the answer")};
    }
    case Expectation::Kind::equals:
      if (answer.text == expected.text) {
        return {Verdict::correct};
      }
      return {expected.strict ? Verdict::wrong : Verdict::differs,
              absl::StrCat("differs from the idle server's answer at byte ",
                           first_difference(answer.text, expected.text))};
    case Expectation::Kind::schema: {
      const std::string why = schema_violation(answer.text, expected.schema);
      return {why.empty() ? Verdict::correct : Verdict::missed, why};
    }
  }
  return {};
}

}  // namespace

void RecentKeys::add(const std::string& key, uint64_t session) {
  if (owners_.insert_or_assign(key, session).second) {
    order_.push_back(key);
  }
  if (order_.size() > kKept) {
    owners_.erase(order_.front());
    order_.pop_front();
  }
}

std::optional<uint64_t> RecentKeys::owner_of_other_key(std::string_view text,
                                                       uint64_t session) const {
  for (size_t begin = 0; begin < text.size();) {
    if (!is_digit(text[begin])) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (end < text.size() && is_digit(text[end])) {
      ++end;
    }
    const auto found = owners_.find(std::string(text.substr(begin, end - begin)));
    if (found != owners_.end() && found->second != session) {
      return found->second;
    }
    begin = end;
  }
  return std::nullopt;
}

Judgement judge(const LoadRequest& request, const Answer& answer, const RecentKeys& keys) {
  if (std::string why = usage_violation(request, answer); !why.empty()) {
    return {Verdict::wrong, std::move(why)};
  }
  if (answer.finish_reason.empty()) {
    return {Verdict::wrong, "the stream has no finish_reason"};
  }
  return judge_text(request, answer, keys);
}

}  // namespace tessera::load
