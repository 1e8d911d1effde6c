#include "server/grpc/authorization.h"

#include <string_view>

namespace tessera {
std::string_view metadata_of(const grpc::ServerContextBase& context, const char* name) {
  const auto& metadata = context.client_metadata();
  const auto shown = metadata.find(name);
  return shown == metadata.end() ? std::string_view()
                                 : std::string_view(shown->second.data(), shown->second.size());
}

absl::StatusOr<std::shared_ptr<const Caller>> authorize(const ApiKeys& keys,
                                                        const grpc::ServerContextBase& context,
                                                        bool admin) {
  std::shared_ptr<const Caller> caller = keys.find(metadata_of(context, "authorization"));
  if (caller == nullptr) {
    return absl::UnauthenticatedError(
        "no valid API key: send it as metadata 'authorization: Bearer KEY'");
  }
  if (admin && !caller->admin) {
    return absl::PermissionDeniedError("this call is for keys with the right 'admin'");
  }
  return caller;
}

}  // namespace tessera
