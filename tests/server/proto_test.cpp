// The proto breaks no client of the released one: each line of tests/golden/inference_proto.txt is
// still true.
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tessera/v1/inference.pb.h"

namespace tessera {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;
using Lines = std::set<std::string>;

std::string type_of(const FieldDescriptor& field) {
  if (field.message_type() != nullptr) {
    return field.message_type()->full_name();
  }
  return field.enum_type() != nullptr ? field.enum_type()->full_name() : field.type_name();
}

// All that a client's generated code or its bytes depend on.
std::string line_of(const FieldDescriptor& field) {
  const auto* oneof = field.real_containing_oneof();
  return absl::StrCat("field ", field.full_name(), " = ", field.number(), ": ",
                      field.is_repeated() ? "repeated " : "",
                      field.has_optional_keyword() ? "optional " : "", type_of(field),
                      oneof == nullptr ? "" : absl::StrCat(" in ", oneof->name()), " json ",
                      field.json_name());
}

void add_enum(const EnumDescriptor& type, Lines& out) {
  for (int i = 0; i < type.value_count(); ++i) {
    out.insert(absl::StrCat("value ", type.full_name(), " ", type.value(i)->name(), " = ",
                            type.value(i)->number()));
  }
}

void add_message(const Descriptor& type, Lines& out) {
  out.insert("message " + type.full_name());
  for (int i = 0; i < type.field_count(); ++i) {
    out.insert(line_of(*type.field(i)));
  }
  for (int i = 0; i < type.nested_type_count(); ++i) {
    add_message(*type.nested_type(i), out);
  }
  for (int i = 0; i < type.enum_type_count(); ++i) {
    add_enum(*type.enum_type(i), out);
  }
}

Lines lines_of(const FileDescriptor& file) {
  Lines out;
  for (int i = 0; i < file.message_type_count(); ++i) {
    add_message(*file.message_type(i), out);
  }
  for (int i = 0; i < file.enum_type_count(); ++i) {
    add_enum(*file.enum_type(i), out);
  }
  for (int i = 0; i < file.service_count(); ++i) {
    for (int j = 0; j < file.service(i)->method_count(); ++j) {
      const MethodDescriptor& method = *file.service(i)->method(j);
      out.insert(absl::StrCat(
          "method ", method.full_name(), "(", method.client_streaming() ? "stream " : "",
          method.input_type()->full_name(), ") returns (",
          method.server_streaming() ? "stream " : "", method.output_type()->full_name(), ")"));
    }
  }
  return out;
}

TEST(Proto, KeepsEveryFieldOfTheReleasedOne) {
  constexpr const char* path = TESSERA_SOURCE_DIR "/tests/golden/inference_proto.txt";
  const Lines now = lines_of(*v1::GenerateRequest::descriptor()->file());
  if (std::getenv("TESSERA_PRINT_PROTO") != nullptr) {
    std::cout << absl::StrJoin(now, "\n") << "\n";
  }
  std::ifstream file(path);
  Lines released;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && !line.starts_with('#')) {
      released.insert(line);
    }
  }
  ASSERT_GT(released.size(), 150U) << path;
  for (const std::string& line : released) {
    EXPECT_TRUE(now.contains(line))
        << "a client of the released proto depends on: " << line
        << "\nGive a new field a new number and leave this one as it is.";
  }
}

}  // namespace
}  // namespace tessera
