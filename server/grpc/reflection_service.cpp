#include "server/grpc/reflection_service.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <optional>
#include <utility>
#include <vector>

#include "server/grpc/authorization.h"
#include "server/grpc/unary_call.h"

namespace tessera {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using ReflectionRequest = ServiceDescriber::Request;
using ReflectionResponse = ServiceDescriber::Response;

// Adds a file and the files that it imports, each once.
void add_file(const FileDescriptor& file, std::set<std::string>& added,
              grpc::reflection::v1::FileDescriptorResponse& out) {
  if (!added.insert(file.name()).second) {
    return;
  }
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  out.add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) {
    add_file(*file.dependency(i), added, out);
  }
}

void add_error(grpc::StatusCode code, const std::string& message, ReflectionResponse& out) {
  out.mutable_error_response()->set_error_code(code);
  out.mutable_error_response()->set_error_message(message);
}

// `file`: null if there is none.
void add_files(const FileDescriptor* file, const std::string& what, ReflectionResponse& out) {
  if (file == nullptr) {
    return add_error(grpc::StatusCode::NOT_FOUND,
                     fmt::format("{} is not known to this server", what), out);
  }
  std::set<std::string> added;
  add_file(*file, added, *out.mutable_file_descriptor_response());
}

void add_numbers(const std::string& type, ReflectionResponse& out) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const Descriptor* descriptor = pool.FindMessageTypeByName(type);
  if (descriptor == nullptr) {
    return add_error(grpc::StatusCode::NOT_FOUND, "the type is not known to this server", out);
  }
  auto& numbers = *out.mutable_all_extension_numbers_response();
  numbers.set_base_type_name(type);
  std::vector<const FieldDescriptor*> extensions;
  pool.FindAllExtensions(descriptor, &extensions);
  for (const FieldDescriptor* extension : extensions) {
    numbers.add_extension_number(extension->number());
  }
}

const FileDescriptor* file_of_extension(const grpc::reflection::v1::ExtensionRequest& request) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const Descriptor* type = pool.FindMessageTypeByName(request.containing_type());
  const FieldDescriptor* extension =
      type == nullptr ? nullptr : pool.FindExtensionByNumber(type, request.extension_number());
  return extension == nullptr ? nullptr : extension->file();
}

// One call. gRPC owns it from its creation to OnDone. A request is read when the response to the
// one before has been written, so a call holds one of each.
class ReflectionCall final : public grpc::ServerBidiReactor<ReflectionRequest, ReflectionResponse> {
 public:
  ReflectionCall(const ServiceDescriber& reflection, OpenCalls::Place place)
      : reflection_(reflection), place_(std::move(place)) {
    StartRead(&request_);
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::OK);
      return;
    }
    response_ = reflection_.answer(request_);
    StartWrite(&response_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::CANCELLED);
      return;
    }
    StartRead(&request_);
  }

  void OnDone() override {
    place_.release();
    delete this;
  }

  const ServiceDescriber& reflection_;
  OpenCalls::Place place_;  // never kept: a client may leave such a call open for ever
  ReflectionRequest request_;
  ReflectionResponse response_;
};

}  // namespace

ReflectionResponse ServiceDescriber::answer(const ReflectionRequest& request) const {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  ReflectionResponse out;
  out.set_valid_host(request.host());
  *out.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case ReflectionRequest::kFileByFilename:
      add_files(pool.FindFileByName(request.file_by_filename()), "the file", out);
      break;
    case ReflectionRequest::kFileContainingSymbol:
      add_files(pool.FindFileContainingSymbol(request.file_containing_symbol()), "the symbol", out);
      break;
    case ReflectionRequest::kFileContainingExtension:
      add_files(file_of_extension(request.file_containing_extension()), "the extension", out);
      break;
    case ReflectionRequest::kAllExtensionNumbersOfType:
      add_numbers(request.all_extension_numbers_of_type(), out);
      break;
    case ReflectionRequest::kListServices:
      for (const std::string& service : services_) {
        out.mutable_list_services_response()->add_service()->set_name(service);
      }
      break;
    case ReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      add_error(grpc::StatusCode::INVALID_ARGUMENT, "message_request is missing", out);
      break;
  }
  return out;
}

grpc::ServerBidiReactor<ReflectionRequest, ReflectionResponse>* ServiceDescriber::serve(
    grpc::CallbackServerContext& context) const {
  absl::Status status = authorize(keys_, context).status();
  if (status.ok()) {
    if (std::optional<OpenCalls::Place> place = limits_.open.take(context, /*has_caller=*/true)) {
      return new ReflectionCall(*this, *std::move(place));
    }
    status = absl::ResourceExhaustedError("too many calls are open: try again later");
  }
  return new RefusedCall<ReflectionRequest, ReflectionResponse>(
      status, *limits_.open.take(context, /*has_caller=*/false));
}

}  // namespace tessera
