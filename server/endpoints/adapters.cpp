// /v1/load_lora_adapter and /v1/unload_lora_adapter, with vLLM's bodies and answers.
#include "server/endpoints/adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "server/adapters/adapter_store.h"
#include "server/generation/served_model.h"
#include "server/generation/service.h"
#include "server/json/body_fields.h"
#include "server/routes/replies.h"
#include "server/routes/route_table.h"

namespace tessera {

absl::StatusOr<AdapterRequest> parse_load_adapter_request(std::string_view body) {
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json object, parse_body(body));
  AdapterRequest request;
  bool in_place = false;
  BodyFields fields(object);
  fields.text("lora_name", request.name);
  fields.text("lora_path", request.path);
  fields.boolean("load_inplace", in_place);
  if (in_place) {
    fields.refuse("load_inplace", "is not supported: unload the adapter first");
  }
  fields.refuse_unknown();
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (request.name.empty()) return invalid_field("lora_name", "lora_name is missing");
  if (request.path.empty()) return invalid_field("lora_path", "lora_path is missing");
  return request;
}

absl::StatusOr<AdapterRequest> parse_unload_adapter_request(std::string_view body) {
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json object, parse_body(body));
  AdapterRequest request;
  BodyFields fields(object);
  fields.text("lora_name", request.name);
  fields.find("lora_int_id");  // vLLM's own number, which nothing here has
  fields.refuse_unknown();
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (request.name.empty()) return invalid_field("lora_name", "lora_name is missing");
  return request;
}

namespace {

HttpReply success(const std::string& name, std::string_view what) {
  HttpReply reply;
  reply.content_type = "text/plain; charset=utf-8";
  reply.body = fmt::format("Success: LoRA adapter '{}' {} successfully.", name, what);
  return reply;
}

// Waits for the store to read an adapter.
class LoadAnswer final : public HttpAnswer {
 public:
  LoadAnswer(std::string name, std::shared_ptr<Waker> waker)
      : state_(std::make_shared<State>()), name_(std::move(name)) {
    state_->waker = std::move(waker);
  }

  AdapterStore::Done done() const {
    return [state = state_](const absl::StatusOr<AdapterStore::Adapter>& result) {
      {
        const std::lock_guard lock(state->mutex);
        state->status = result.status();
      }
      state->waker->wake();
    };
  }

  std::optional<HttpReply> start() override {
    const std::lock_guard lock(state_->mutex);
    if (!state_->status) return std::nullopt;
    return state_->status->ok() ? success(name_, "added") : error_reply(*state_->status);
  }
  bool more(std::string& /*piece*/) override { return false; }

 private:
  struct State {
    std::shared_ptr<Waker> waker;
    std::mutex mutex;
    std::optional<absl::Status> status;  // guarded by the mutex
  };

  const std::shared_ptr<State> state_;
  const std::string name_;
};

absl::StatusOr<AdapterStore*> open_store(const EndpointContext& context) {
  AdapterStore* const store = context.service.adapters();
  if (store != nullptr && store->grows()) return store;
  return absl::UnimplementedError(
      "this server takes no adapters while it runs: start it with --lora-memory");
}

absl::StatusOr<HttpResult> load(const EndpointContext& context) {
  TESSERA_ASSIGN_OR_RETURN(AdapterStore* const store, open_store(context));
  TESSERA_ASSIGN_OR_RETURN(AdapterRequest request,
                           parse_load_adapter_request(context.request.body));
  const std::span<const std::string> aliases = context.service.aliases();
  if (request.name == context.service.model_name() ||
      std::ranges::find(aliases, request.name) != aliases.end()) {
    return invalid_field("lora_name",
                         fmt::format("'{}' is a name of the model itself", request.name));
  }
  auto answer = std::make_unique<LoadAnswer>(request.name, context.waker);
  store->add(request.name, std::move(request.path), answer->done());
  return HttpResult(std::move(answer));
}

absl::StatusOr<HttpResult> unload(const EndpointContext& context) {
  TESSERA_ASSIGN_OR_RETURN(AdapterStore* const store, open_store(context));
  TESSERA_ASSIGN_OR_RETURN(const AdapterRequest request,
                           parse_unload_adapter_request(context.request.body));
  TESSERA_RETURN_IF_ERROR(store->remove(request.name));
  return HttpResult(success(request.name, "removed"));
}

}  // namespace

HttpResult answer_load_adapter(const EndpointContext& context) {
  return result_of(load(context));
}

HttpResult answer_unload_adapter(const EndpointContext& context) {
  return result_of(unload(context));
}

}  // namespace tessera
