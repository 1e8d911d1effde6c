#include "server/dialect/request_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "engine/kv/kv_policy_fields.h"
#include "server/request/request_limits.h"

namespace tessera {

namespace {

using nlohmann::json;

// Reads plain options by the type of their member.
class PlainReader {
 public:
  // given: receives the names of the numbers in the body
  PlainReader(BodyFields& fields, std::vector<std::string_view>& given)
      : fields_(fields), given_(given) {}

  template <class T>
  void operator()(const SpecialOption&, T&) {}
  void operator()(const Option& option, bool& out) { fields_.boolean(option.name, out); }
  void operator()(const Option& option, float& out) {
    note(option);
    fields_.number(option, out);
  }
  void operator()(const Option& option, int32_t& out) {
    note(option);
    if (option.name == "top_k") {  // vLLM: -1 means all
      fields_.integer({option.name, {-1}}, out);
      out = std::max(out, 0);
    } else {
      fields_.integer(option, out);
    }
  }
  void operator()(const Option& option, std::optional<int32_t>& out) {
    if (fields_.find(option.name) != nullptr) {
      fields_.integer(option, out.emplace());
    }
  }
  void operator()(const Option& option, std::optional<float>& out) {
    if (fields_.find(option.name) != nullptr) {
      fields_.number(option, out.emplace());
    }
  }
  void operator()(const Option& option, std::vector<int32_t>& out) {
    fields_.integers(option.name, out);
  }

 private:
  void note(const Option& option) {
    if (fields_.find(option.name) != nullptr) given_.push_back(option.name);
  }

  BodyFields& fields_;
  std::vector<std::string_view>& given_;
};

// {"token id": bias}
void read_logit_bias(BodyFields& fields, SamplingParams& out) {
  const json* value = fields.find("logit_bias");
  if (value == nullptr) {
    return;
  }
  if (!value->is_object()) {
    fields.refuse("logit_bias", fmt::format("must be an object, not {}", excerpt(*value)));
    return;
  }
  for (const auto& [key, bias] : value->items()) {
    SamplingParams::Bias entry;
    if (out.logit_bias.size() > kMaxBiases) {
      return;  // long_field() refuses it
    }
    // One spelling for each id, so that no id comes twice.
    if (!absl::SimpleAtoi(key, &entry.token) || std::to_string(entry.token) != key) {
      constexpr std::size_t kShown = 40;
      fields.refuse("logit_bias",
                    fmt::format("must have token ids as keys, not '{}'", key.substr(0, kShown)));
      return;
    }
    BodyFields item(*value, "logit_bias.");
    item.number({key, kBias}, entry.value);
    fields.adopt(item.status());
    out.logit_bias.push_back(entry);
  }
}

// Texts of which the service makes tokens: vLLM's bad_words, llama-server's dry_sequence_breakers.
void read_token_lists(BodyFields& fields, GenerateRequest& out) {
  fields.texts("bad_words", out.bad_texts);
  if (fields.find("dry_sequence_breakers") != nullptr) {
    fields.texts("dry_sequence_breakers", out.breakers.emplace());
  }
}

void read_seed(BodyFields& fields, GenerateRequest& out) {
  int64_t seed = kRandomSeed;
  fields.integer({"seed"}, seed);
  if (seed != kRandomSeed) {
    out.seed = static_cast<uint64_t>(seed);
  }
}

// `retain` is `pin` and `ttl` in one field.
void read_pin(BodyFields& fields, GenerateRequest& out) {
  int64_t seconds = out.cache.ttl.count();
  fields.boolean("pin", out.cache.pin);
  fields.integer({"ttl", kPinSeconds}, seconds);
  if (fields.find("retain") != nullptr) {
    if (fields.find("pin") != nullptr || fields.find("ttl") != nullptr) {
      fields.refuse("retain", "cannot be combined with pin and ttl, which it replaces");
    }
    fields.integer({"retain", kPinSeconds}, seconds);
    out.cache.pin = true;
    out.ttl_field = "cache.retain";
  }
  out.cache.ttl = std::chrono::seconds(seconds);
}

void refuse_long(BodyFields& fields, const GenerateRequest& request) {
  if (const std::optional<LongField> field = long_field(request)) {
    fields.refuse(field->name, field->error);
  }
}

}  // namespace

void read_options(BodyFields& fields, GenerateRequest& out) {
  visit_options(PlainReader(fields, out.given), static_cast<RequestOptions&>(out));
  read_seed(fields, out);
  read_logit_bias(fields, out.sampling);
  read_token_lists(fields, out);
  read_cache(fields, out);
}

void read_cache(BodyFields& fields, GenerateRequest& out) {
  fields.text("cache_salt", out.cache_salt);
  fields.boolean("cache_prompt", out.cache.use);
  refuse_long(fields, out);
  const json* cache = fields.find("cache");
  if (cache == nullptr) {
    return;
  }
  if (!cache->is_object()) {
    fields.refuse("cache", fmt::format("must be an object, not {}", excerpt(*cache)));
    return;
  }
  BodyFields inner(*cache, "cache.");
  read_pin(inner, out);
  inner.boolean("demote", out.cache.demote);
  inner.boolean("release", out.cache.release);
  inner.boolean("prefetch", out.cache.prefetch);
  std::string accept;
  inner.text("accept", accept);
  if (!accept.empty()) {
    const absl::StatusOr<KvPolicy> accepted = parse_policy(accept);
    if (accepted.ok()) {
      out.cache_accept = accepted->high;
    } else {
      inner.refuse("accept", std::string(accepted.status().message()));
    }
  }
  inner.refuse_unknown();
  fields.adopt(inner.status());
}

}  // namespace tessera
