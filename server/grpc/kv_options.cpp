#include "server/grpc/kv_options.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/check.h"

namespace tessera {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Reflection;

KvFieldValue value_of(const v1::KvOptions& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.GetString(message, &field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_INT32:
      return int64_t{reflection.GetInt32(message, &field)};
    case FieldDescriptor::CPPTYPE_INT64:
      return int64_t{reflection.GetInt64(message, &field)};
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.GetFloat(message, &field);
    default:
      TESSERA_CHECK(false, "KvOptions has a field of a type that is not read");
  }
}

// Requires: the message's field has the type of the policy's.
void set(v1::KvOptions& message, const std::string& name, const KvFieldValue& value) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
  TESSERA_CHECK(field != nullptr, "KvOptions lacks a field of a policy");
  const Reflection& reflection = *message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.SetString(&message, field, std::get<std::string>(value));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(&message, field, std::get<bool>(value));
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.SetInt32(&message, field, static_cast<int32_t>(std::get<int64_t>(value)));
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.SetInt64(&message, field, std::get<int64_t>(value));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.SetFloat(&message, field, std::get<float>(value));
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
      overrides.fields.emplace_back(field->name(), value_of(message, *field));
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
