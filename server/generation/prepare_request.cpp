#include "server/generation/prepare_request.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/status_macros.h"
#include "engine/retry_after.h"
#include "server/adapters/adapter_store.h"
#include "server/generation/served_model.h"

namespace tessera {
namespace {

bool lacks_adapter(const GenerateRequest& request) {
  return !request.adapter_name.empty() && request.adapter == nullptr;
}

}  // namespace

absl::Status choose_model(const Service& service, std::string_view asked,
                          GenerateRequest& request) {
  TESSERA_RETURN_IF_ERROR(check_model(service, asked));
  if (service.adapters() != nullptr && service.adapters()->has(asked)) {
    request.adapter_name = asked;
  }
  return absl::OkStatus();
}

bool needs_preparing(Service& service, GenerateRequest& request) {
  if (lacks_adapter(request)) {
    request.adapter = service.adapters()->find(request.adapter_name).value_or(nullptr);
  }
  return lacks_adapter(request) || request.grammar.has_value();
}

void prepare(Service& service, GenerateRequest& request, GrammarStore::Done done) {
  const auto compile = [&service, &request](GrammarStore::Done next) {
    request.grammar ? service.compile(request, std::move(next)) : next(GrammarStore::Grammar());
  };
  if (!lacks_adapter(request)) return compile(std::move(done));
  service.adapters()->get(request.adapter_name, [&request, compile, done = std::move(done)](
                                                    absl::StatusOr<AdapterStore::Adapter> adapter) {
    if (!adapter.ok()) return done(adapter.status());
    request.adapter = *std::move(adapter);
    compile(done);
  });
}

absl::Status take_adapter(Service& service, GenerateRequest& request) {
  if (!lacks_adapter(request)) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(request.adapter, service.adapters()->find(request.adapter_name));
  if (request.adapter != nullptr) return absl::OkStatus();
  service.adapters()->get(request.adapter_name, [](const auto&) {});
  return with_retry_after(absl::UnavailableError(fmt::format(
                              "the adapter '{}' is being read: try again", request.adapter_name)),
                          std::chrono::seconds(1));
}

}  // namespace tessera
