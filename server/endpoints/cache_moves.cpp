// /v1/cache/export and /v1/cache/import.
#include "server/endpoints/cache_moves.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "server/base/error.h"
#include "server/generation/prefix_file.h"
#include "server/generation/prefix_move.h"
#include "server/generation/prepare_request.h"
#include "server/generation/service.h"
#include "server/json/body_fields.h"
#include "server/routes/replies.h"
#include "server/routes/route_table.h"

namespace tessera {

absl::StatusOr<CompletionRequest> parse_export_request(std::string_view body) {
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json object, parse_body(body));
  TESSERA_ASSIGN_OR_RETURN(CompletionRequest request, object.contains("messages")
                                                          ? parse_chat_request(body)
                                                          : parse_completion_request(body));
  if (request.prompts.size() != 1) {
    return invalid_field("prompt", "prompt must be one prompt: a file has one prefix");
  }
  request.each.prompt = std::move(request.prompts.front());
  request.prompts.clear();
  return request;
}

namespace {

// Bytes of blocks in a part of a file: the memory that a file on its way takes. A block that is
// larger gets a part with more.
constexpr std::size_t kPartBytes = 4U << 20U;
constexpr std::size_t kMostPartBytes = 256U << 20U;

// Faults of a file, or of the settings of both servers, are the client's.
absl::Status refusal_of(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsFailedPrecondition(status)
             ? absl::InvalidArgumentError(status.message())
             : status;
}

// Writes a prefix part by part. Only one part is in memory.
class ExportAnswer final : public HttpAnswer {
 public:
  ExportAnswer(const EndpointContext& context, GenerateRequest request)
      : service_(context.service),
        waker_(context.waker),
        request_(std::move(request)),
        salt_(request_.cache_salt),
        block_tokens_(service_.engine().stats().prefix_block_tokens) {}

  absl::Status begin_part() {
    auto transfer = std::make_shared<PrefixTransfer>();
    transfer->first_block = first_block_;
    transfer->bytes.resize(part_bytes_);
    transfer->path.reserve(static_cast<std::size_t>(service_.engine().options().context));
    TESSERA_ASSIGN_OR_RETURN(PrefixMove move,
                             PrefixMove::begin(service_, request_, std::move(transfer), waker_));
    move_.emplace(std::move(move));
    if (!std::holds_alternative<std::vector<int32_t>>(request_.prompt)) {
      request_.prompt = move_->prompt();
      request_.prompt_options = {};
    }
    request_.admitted = false;
    return absl::OkStatus();
  }

  std::size_t start_bytes() const override { return part_bytes_; }
  std::size_t more_bytes() const override { return part_bytes_; }

  std::optional<HttpReply> start() override {
    HttpReply reply;
    const absl::StatusOr<bool> any = take_part(reply.body);
    if (!any.ok()) {
      return error_reply(refusal_of(any.status()));
    }
    if (!*any) {
      return ended_ ? std::optional(error_reply(absl::NotFoundError(
                          "the cache has no block of this prompt: nothing is exported")))
                    : std::nullopt;
    }
    reply.content_type = "application/octet-stream";
    reply.headers = {{"Cache-Control", "no-store"}};
    reply.streamed = true;
    return reply;
  }

  // An error ends the file behind a whole part.
  bool more(std::string& piece) override { return !ended_ && take_part(piece).ok() && !ended_; }

 private:
  // Appends the part that has arrived, and begins the next one.
  // Returns: false if there is none.
  absl::StatusOr<bool> take_part(std::string& out) {
    if (ended_) {
      return false;
    }
    TESSERA_ASSIGN_OR_RETURN(const PrefixTransfer* const transfer, move_->result());
    if (transfer == nullptr) {
      return false;
    }
    const int32_t blocks = transfer->blocks;
    if (blocks > 0) {
      const std::vector<int32_t>& prompt = move_->prompt();
      const auto tokens = static_cast<std::ptrdiff_t>(first_block_ + blocks) * block_tokens_;
      print_prefix_part({.fingerprint = transfer->fingerprint,
                         .first_block = first_block_,
                         .blocks = blocks,
                         .block_tokens = block_tokens_,
                         .root_level = transfer->root_level,
                         .salt = salt_,
                         .tokens = {prompt.begin(), prompt.begin() + tokens},
                         .records = transfer->bytes},
                        out);
    }
    first_block_ += blocks;
    ended_ = !transfer->more;
    if (transfer->more && blocks == 0) {
      part_bytes_ *= 2;
    }
    if (part_bytes_ > kMostPartBytes) {
      return absl::ResourceExhaustedError(
          fmt::format("a block has more than the {} bytes of a part", kMostPartBytes));
    }
    if (!ended_) {
      TESSERA_RETURN_IF_ERROR(begin_part());
    }
    return blocks > 0;
  }

  Service& service_;
  const std::shared_ptr<Waker> waker_;
  GenerateRequest request_;
  const std::string salt_;
  const int32_t block_tokens_;
  int32_t first_block_ = 0;
  std::size_t part_bytes_ = kPartBytes;
  bool ended_ = false;
  std::optional<PrefixMove> move_;
};

// Reads a file part by part.
class ImportAnswer final : public HttpAnswer {
 public:
  ImportAnswer(const EndpointContext& context, GenerateRequest request, ByteBudget::Share room)
      : service_(context.service),
        waker_(context.waker),
        request_(std::move(request)),
        room_(std::move(room)),
        file_(context.request.body),
        rest_(file_) {}

  absl::Status begin_part() {
    TESSERA_ASSIGN_OR_RETURN(PrefixFilePart part, take_prefix_part(rest_));
    block_tokens_ = service_.engine().stats().prefix_block_tokens;
    if (part.block_tokens != block_tokens_) {
      return absl::InvalidArgumentError(
          fmt::format("the file's blocks have {} tokens, those of this server {}: it has another "
                      "checkpoint or other KV settings",
                      part.block_tokens, block_tokens_));
    }
    auto transfer = std::make_shared<PrefixTransfer>();
    transfer->enters = true;
    transfer->first_block = part.first_block;
    transfer->fingerprint = part.fingerprint;
    transfer->root_level = part.root_level;
    transfer->bytes.assign(part.records.begin(), part.records.end());
    end_ = part.first_block + part.blocks;
    part.tokens.push_back(0);  // the last token of a prompt is never cached
    request_.cache_salt = part.salt;
    request_.prompt = std::move(part.tokens);
    TESSERA_ASSIGN_OR_RETURN(PrefixMove move,
                             PrefixMove::begin(service_, request_, std::move(transfer), waker_));
    move_.emplace(std::move(move));
    request_.admitted = false;
    return absl::OkStatus();
  }

  std::size_t start_bytes() const override { return file_.size() + 1; }

  std::optional<HttpReply> start() override {
    const absl::StatusOr<bool> ended = take_part();
    if (!ended.ok()) {
      return error_reply(refusal_of(ended.status()));
    }
    return *ended
               ? std::optional(json_reply(fmt::format(R"({{"status":"ok","units":{},"tokens":{}}})",
                                                      end_, int64_t{end_} * block_tokens_)))
               : std::nullopt;
  }
  bool more(std::string& /*piece*/) override { return false; }

 private:
  // Returns: true at the end of the file.
  absl::StatusOr<bool> take_part() {
    TESSERA_ASSIGN_OR_RETURN(const PrefixTransfer* const transfer, move_->result());
    if (transfer == nullptr) {
      return false;
    }
    if (!rest_.empty()) {
      TESSERA_RETURN_IF_ERROR(begin_part());
      return false;
    }
    return true;
  }

  Service& service_;
  const std::shared_ptr<Waker> waker_;
  GenerateRequest request_;
  ByteBudget::Share room_;
  const std::string file_;
  std::string_view rest_;
  int32_t block_tokens_ = 0;
  int32_t end_ = 0;  // blocks from the beginning of the prefix to the end of the part
  std::optional<PrefixMove> move_;
};

absl::StatusOr<HttpResult> export_prefix(const EndpointContext& context) {
  TESSERA_ASSIGN_OR_RETURN(CompletionRequest request, parse_export_request(context.request.body));
  tell_warnings(context, request.warnings);
  TESSERA_RETURN_IF_ERROR(choose_model(context.service, request.model, request.each));
  if (!request.each.adapter_name.empty()) {
    return invalid_field("model", "prefixes of adapters are not exported");
  }
  if (request.chat) {
    TESSERA_RETURN_IF_ERROR(context.service.prepare_chat(request.tools, request.each).status());
  }
  request.each.grammar.reset();  // nothing is generated
  TESSERA_RETURN_IF_ERROR(take_head(context, request.each));
  auto answer = std::make_unique<ExportAnswer>(context, std::move(request.each));
  TESSERA_RETURN_IF_ERROR(answer->begin_part());
  return HttpResult(std::move(answer));
}

absl::StatusOr<HttpResult> import_prefix(const EndpointContext& context) {
  GenerateRequest request;
  TESSERA_RETURN_IF_ERROR(take_head(context, request));
  TESSERA_ASSIGN_OR_RETURN(ByteBudget::Share room,
                           take_bytes(context.service.budget(), context.request.body.size()));
  auto answer = std::make_unique<ImportAnswer>(context, std::move(request), std::move(room));
  TESSERA_RETURN_IF_ERROR(answer->begin_part());
  return HttpResult(std::move(answer));
}

}  // namespace

HttpResult answer_cache_export(const EndpointContext& context) {
  return result_of(export_prefix(context));
}

HttpResult answer_cache_import(const EndpointContext& context) {
  return result_of(import_prefix(context));
}

}  // namespace tessera
