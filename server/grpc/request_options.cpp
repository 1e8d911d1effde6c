#include "server/grpc/request_options.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/reflection.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "engine/kv/kv_policy_fields.h"
#include "server/request/request_limits.h"

namespace tessera {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// A field of a message.
struct Field {
  const Message& message;
  const FieldDescriptor* descriptor;

  bool given() const { return message.GetReflection()->HasField(message, descriptor); }
  void get(bool& out) const { out = message.GetReflection()->GetBool(message, descriptor); }
  void get(float& out) const { out = message.GetReflection()->GetFloat(message, descriptor); }
  void get(int32_t& out) const { out = message.GetReflection()->GetInt32(message, descriptor); }
  void get(std::optional<int32_t>& out) const { get(out.emplace()); }
  void get(std::optional<float>& out) const { get(out.emplace()); }
};

// Reads plain options by the type of their member.
class PlainReader {
 public:
  // given: receives the names of the fields in the message
  PlainReader(const v1::GenerateRequest& message, std::vector<std::string_view>& given)
      : message_(message), given_(given) {}

  template <class T>
  void operator()(const SpecialOption&, T&) {}
  template <class T>
  void operator()(const Option& option, T& out) {
    const Field field = find(option);
    if (field.given()) {
      given_.push_back(option.name);
      field.get(out);
    }
  }
  void operator()(const Option& option, std::vector<int32_t>& out) {
    const Field field = find(option);
    const auto values = field.message.GetReflection()->GetRepeatedFieldRef<int32_t>(
        field.message, field.descriptor);
    out.assign(values.begin(), values.end());
  }

 private:
  Field find(const Option& option) const {
    const std::string name(option.name);
    for (const Message* message : {static_cast<const Message*>(&message_.sampling()),
                                   static_cast<const Message*>(&message_)}) {
      if (const auto* field = message->GetDescriptor()->FindFieldByName(name); field != nullptr) {
        return {*message, field};
      }
    }
    TESSERA_CHECK(false, "the proto lacks a field of a request's options");
  }

  const v1::GenerateRequest& message_;
  std::vector<std::string_view>& given_;
};

// Errors: InvalidArgument names a field that is too long.
absl::Status check_lengths(const GenerateRequest& request) {
  const std::optional<LongField> field = long_field(request);
  return field ? absl::InvalidArgumentError(fmt::format("{} {}", field->name, field->error))
               : absl::OkStatus();
}

// retain_seconds is `pin` and ttl_seconds in one field.
absl::Status read_pin(const v1::CacheOptions& message, GenerateRequest& out) {
  const bool retains = message.has_retain_seconds();
  if (retains && (message.pin() || message.has_ttl_seconds())) {
    return absl::InvalidArgumentError(
        "cache.retain_seconds cannot be combined with pin and ttl_seconds, which it replaces");
  }
  out.cache.pin = message.pin() || retains;
  out.ttl_field = retains ? "cache.retain_seconds" : out.ttl_field;
  if (retains || message.has_ttl_seconds()) {
    const int32_t seconds = retains ? message.retain_seconds() : message.ttl_seconds();
    TESSERA_RETURN_IF_ERROR(check_option(
        {retains ? "cache.retain_seconds" : "cache.ttl_seconds", kPinSeconds}, seconds));
    out.cache.ttl = std::chrono::seconds(seconds);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status read_cache(const v1::CacheOptions& message, GenerateRequest& out) {
  out.cache_salt = message.salt();
  out.cache.use = !message.has_use() || message.use();
  TESSERA_RETURN_IF_ERROR(read_pin(message, out));
  out.cache.demote = message.demote();
  out.cache.release = message.release();
  out.cache.prefetch = message.prefetch();
  if (!message.accept().empty()) {
    const absl::StatusOr<KvPolicy> accepted = parse_policy(message.accept());
    if (!accepted.ok()) {
      return absl::InvalidArgumentError(
          fmt::format("cache.accept: {}", std::string(accepted.status().message())));
    }
    out.cache_accept = accepted->high;
  }
  return check_lengths(out);
}

absl::Status read_options(const v1::GenerateRequest& message, GenerateRequest& out) {
  visit_options(PlainReader(message, out.given), static_cast<RequestOptions&>(out));
  for (const auto& [token, value] : message.sampling().logit_bias()) {
    out.sampling.logit_bias.push_back({token, value});
  }
  if (message.has_logprobs()) {
    out.sampling.top_logprobs = message.logprobs();
  }
  const v1::SamplingParams& sampling = message.sampling();
  out.bad_texts = {sampling.bad_words().begin(), sampling.bad_words().end()};
  if (sampling.has_dry_sequence_breakers()) {
    const auto& texts = sampling.dry_sequence_breakers().texts();
    out.breakers.emplace(texts.begin(), texts.end());
  }
  return read_cache(message.cache(), out);
}

}  // namespace tessera
