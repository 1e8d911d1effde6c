#include "server/grpc/kv_options.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/check.h"

namespace tessera {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Reflection;

std::string text_of(const v1::KvOptions& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.GetString(message, &field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_INT32:
      return fmt::format("{}", reflection.GetInt32(message, &field));
    case FieldDescriptor::CPPTYPE_INT64:
      return fmt::format("{}", reflection.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return fmt::format("{}", reflection.GetFloat(message, &field));
    default:
      TESSERA_CHECK(false, "KvOptions has a field of a type that is not read");
  }
}

void set(v1::KvOptions& message, const std::string& name, const std::string& text) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
  TESSERA_CHECK(field != nullptr, "KvOptions lacks a field of a policy");
  const Reflection& reflection = *message.GetReflection();
  int32_t number = 0;
  int64_t large = 0;
  float real = 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.SetString(&message, field, text);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(&message, field, text == "true");
    case FieldDescriptor::CPPTYPE_INT32:
      TESSERA_CHECK(absl::SimpleAtoi(text, &number), "a policy's number as text");
      return reflection.SetInt32(&message, field, number);
    case FieldDescriptor::CPPTYPE_INT64:
      TESSERA_CHECK(absl::SimpleAtoi(text, &large), "a policy's number as text");
      return reflection.SetInt64(&message, field, large);
    case FieldDescriptor::CPPTYPE_FLOAT:
      TESSERA_CHECK(absl::SimpleAtof(text, &real), "a policy's number as text");
      return reflection.SetFloat(&message, field, real);
    default:
      TESSERA_CHECK(false, "KvOptions has a field of a type that is not written");
  }
}

}  // namespace

KvOverrides parse_kv_options(const v1::KvOptions& message) {
  std::vector<const FieldDescriptor*> given;
  message.GetReflection()->ListFields(message, &given);
  KvOverrides overrides;
  for (const FieldDescriptor* field : given) {
    if (field->name() == "preset") {
      overrides.preset = message.preset();
    } else {
      overrides.fields.emplace_back(field->name(), text_of(message, *field));
    }
  }
  return overrides;
}

v1::KvUsage to_wire(const KvReport& report) {
  v1::KvUsage usage;
  usage.set_policy(std::string(report.preset().name));
  for (const auto& [name, value] : policy_fields(report.preset().policy)) {
    set(*usage.mutable_options(), name, value);
  }
  usage.set_bytes(report.bytes());
  usage.set_f16_bytes(report.f16_bytes());
  usage.set_tokens_high(report.high());
  usage.set_tokens_low(report.low());
  usage.set_tokens_dropped(report.dropped());
  usage.set_budget_share(report.budget_share());
  return usage;
}

}  // namespace tessera
