// /v1/score and /v1/rerank.
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "server/generation/embedding_run.h"
#include "server/generation/prepare_request.h"
#include "server/generation/served_model.h"
#include "server/generation/service.h"
#include "server/openai/score_request.h"
#include "server/openai/score_response.h"
#include "server/routes/replies.h"
#include "server/routes/route_table.h"

namespace tessera {

namespace {

class ScoreAnswer final : public HttpAnswer {
 public:
  ScoreAnswer(std::string model, ScoredPairs pairs, std::unique_ptr<EmbeddingRun> run)
      : model_(std::move(model)), pairs_(std::move(pairs)), run_(std::move(run)) {}

  std::optional<HttpReply> start() override {
    const absl::StatusOr<bool> complete = run_->advance();
    if (!complete.ok()) {
      return error_reply(complete.status());
    }
    return *complete ? std::optional(json_reply(print_scores(model_, *run_, pairs_)))
                     : std::nullopt;
  }
  // Cosines are computed when the answer is printed.
  std::size_t start_bytes() const override {
    return run_->answer_bytes() + run_->embedding_bytes();
  }
  bool more(std::string& /*piece*/) override { return false; }

 private:
  const std::string model_;
  const ScoredPairs pairs_;
  const std::unique_ptr<EmbeddingRun> run_;
};

absl::StatusOr<HttpResult> score(const EndpointContext& context,
                                 absl::StatusOr<ScoreRequest> parsed) {
  TESSERA_ASSIGN_OR_RETURN(ScoreRequest request, std::move(parsed));
  TESSERA_RETURN_IF_ERROR(choose_model(context.service, request.embed.model, request.embed.each));
  TESSERA_RETURN_IF_ERROR(take_head(context, request.embed.each));
  std::string model = answered_name(context.service, request.embed.model);
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<EmbeddingRun> run,
                           EmbeddingRun::begin(context.service, std::move(request.embed),
                                               [waker = context.waker] { waker->wake(); }));
  return HttpResult(
      std::make_unique<ScoreAnswer>(std::move(model), std::move(request.pairs), std::move(run)));
}

}  // namespace

HttpResult answer_score(const EndpointContext& context) {
  return result_of(score(context, parse_score_request(context.request.body)));
}

HttpResult answer_rerank(const EndpointContext& context) {
  return result_of(score(context, parse_rerank_request(context.request.body)));
}

}  // namespace tessera
