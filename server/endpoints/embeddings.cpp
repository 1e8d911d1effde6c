// /v1/embeddings.
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "server/generation/embedding_run.h"
#include "server/generation/prepare_request.h"
#include "server/generation/served_model.h"
#include "server/generation/service.h"
#include "server/openai/embeddings_request.h"
#include "server/openai/embeddings_response.h"
#include "server/routes/replies.h"
#include "server/routes/route_table.h"

namespace tessera {

namespace {

class EmbeddingAnswer final : public HttpAnswer {
 public:
  EmbeddingAnswer(std::string model, std::unique_ptr<EmbeddingRun> run)
      : model_(std::move(model)), run_(std::move(run)) {}

  std::optional<HttpReply> start() override {
    const absl::StatusOr<bool> complete = run_->advance();
    if (!complete.ok()) {
      return error_reply(complete.status());
    }
    return *complete ? std::optional(json_reply(print_embeddings(model_, *run_))) : std::nullopt;
  }
  std::size_t start_bytes() const override { return run_->answer_bytes(); }
  bool more(std::string& /*piece*/) override { return false; }

 private:
  const std::string model_;
  const std::unique_ptr<EmbeddingRun> run_;
};

absl::StatusOr<HttpResult> embed(const EndpointContext& context) {
  TESSERA_ASSIGN_OR_RETURN(EmbeddingRequest request,
                           parse_embeddings_request(context.request.body));
  TESSERA_RETURN_IF_ERROR(choose_model(context.service, request.model, request.each));
  TESSERA_RETURN_IF_ERROR(take_head(context, request.each));
  std::string model = answered_name(context.service, request.model);
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<EmbeddingRun> run,
                           EmbeddingRun::begin(context.service, std::move(request),
                                               [waker = context.waker] { waker->wake(); }));
  return HttpResult(std::make_unique<EmbeddingAnswer>(std::move(model), std::move(run)));
}

}  // namespace

HttpResult answer_embeddings(const EndpointContext& context) {
  return result_of(embed(context));
}

}  // namespace tessera
