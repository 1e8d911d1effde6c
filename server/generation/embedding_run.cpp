#include "server/generation/embedding_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "server/base/error.h"
#include "server/generation/finish_status.h"
#include "server/generation/prepare_request.h"
#include "server/request/request_limits.h"

namespace tessera {
namespace {

// Inputs of one request in the engine at once.
constexpr std::size_t kAtOnce = 32;

// Bytes of a value in the answer: as JSON number with its comma, and as base64.
constexpr std::size_t kNumberBytes = 16;
constexpr std::size_t kBase64Bytes = 6;

// Bytes of an embedding besides its values: JSON around them, the sink.
constexpr std::size_t kEmbeddingBytes = 512;

void normalize(std::span<float> values) {
  double squares = 0;
  for (const float value : values) {
    squares += double{value} * double{value};
  }
  if (squares > 0) {
    const double scale = 1 / std::sqrt(squares);
    for (float& value : values) {
      value = static_cast<float>(value * scale);
    }
  }
}

}  // namespace

// Keeps the engine's report of one input.
class EmbeddingRun::Sink final : public EventSink {
 public:
  Sink(int32_t hidden, std::function<void()> notify)
      : values_(static_cast<std::size_t>(hidden)), notify_(std::move(notify)) {}

  void on_embedding(std::span<const float> embedding) override {
    std::copy(embedding.begin(), embedding.end(), values_.begin());
  }
  void on_token(int32_t /*token*/) override {}
  void on_finish(const Finish& finish) override {
    {
      const std::lock_guard lock(mutex_);
      finish_ = finish;
    }
    notify_();
  }

  std::optional<Finish> finish() const {
    const std::lock_guard lock(mutex_);
    return finish_;
  }
  // After finish(). [hidden]
  std::span<float> values() { return values_; }

 private:
  std::vector<float> values_;  // the engine thread writes them before finish_
  const std::function<void()> notify_;
  mutable std::mutex mutex_;
  std::optional<Finish> finish_;  // guarded by mutex_
};

absl::StatusOr<std::unique_ptr<EmbeddingRun>> EmbeddingRun::begin(Service& service,
                                                                  EmbeddingRequest request,
                                                                  std::function<void()> notify) {
  if (!service.pooling().has_value()) {
    return absl::UnimplementedError("this server makes no embeddings: its --pooling is none");
  }
  const int32_t hidden = service.engine().config().hidden;
  if (request.dimensions && (*request.dimensions < 1 || *request.dimensions > hidden)) {
    return invalid_field("dimensions",
                         fmt::format("dimensions is {}, this model's embeddings have {}",
                                     *request.dimensions, hidden));
  }
  if (request.inputs.empty() || request.inputs.size() > kMaxEmbeddingInputs) {
    return invalid_field(request.fields.last,
                         fmt::format("the request has {} inputs, 1 to {} are allowed",
                                     request.inputs.size(), kMaxEmbeddingInputs));
  }
  TESSERA_RETURN_IF_ERROR(take_adapter(service, request.each));
  std::vector<Prompt> prompts = std::move(request.inputs);
  std::unique_ptr<EmbeddingRun> run(
      new EmbeddingRun(service, std::move(request), std::move(notify)));
  run->inputs_.resize(prompts.size());
  TESSERA_RETURN_IF_ERROR(run->take_room());
  TESSERA_RETURN_IF_ERROR(run->tokenize(std::move(prompts)));
  TESSERA_RETURN_IF_ERROR(run->advance().status());
  return run;
}

EmbeddingRun::EmbeddingRun(Service& service, EmbeddingRequest request, std::function<void()> notify)
    : service_(service),
      each_([&] {
        GenerateRequest each = std::move(request.each);
        each.max_tokens = 0;
        each.pooling = each.pooling.has_value() ? each.pooling : service.pooling();
        return each;
      }()),
      normalize_(request.normalize),
      base64_(request.base64),
      dimensions_(
          static_cast<std::size_t>(request.dimensions.value_or(service.engine().config().hidden))),
      fields_(request.fields),
      notify_(std::move(notify)),
      answer_bytes_(request.answer_bytes.value_or(0)) {}

EmbeddingRun::~EmbeddingRun() {
  for (const Input& input : inputs_) {
    if (input.sink != nullptr && !input.ended) {
      service_.cancel(input.id);
    }
  }
}

// Counts all embeddings, as the engine reports them and as they are printed.
absl::Status EmbeddingRun::take_room() {
  const auto hidden = static_cast<std::size_t>(service_.engine().config().hidden);
  if (answer_bytes_ == 0) {
    answer_bytes_ = inputs_.size() * dimensions_ * (base64_ ? kBase64Bytes : kNumberBytes);
  }
  answer_bytes_ += inputs_.size() * kEmbeddingBytes;
  const std::size_t bytes = answer_bytes_ + inputs_.size() * hidden * sizeof(float);
  if (bytes > service_.max_answer_bytes()) {
    return invalid_field(fields_.last,
                         fmt::format("the answer may take {} bytes of memory, this server allows "
                                     "{}: send fewer inputs, or ask for fewer dimensions",
                                     bytes, service_.max_answer_bytes()));
  }
  TESSERA_ASSIGN_OR_RETURN(room_, take_bytes(service_.budget(), bytes));
  return absl::OkStatus();
}

absl::Status EmbeddingRun::tokenize(std::vector<Prompt> prompts) {
  const int32_t context = service_.engine().options().context;
  const int32_t vocab = service_.tokenizer().vocab_size();
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    std::vector<int32_t>& ids = inputs_[i].ids;
    TESSERA_ASSIGN_OR_RETURN(ids, service_.prompts().tokenize(prompts[i], each_.prompt_options));
    if (std::holds_alternative<std::string>(prompts[i]) && each_.prompt_options.add_bos) {
      const std::span<const int32_t> end = service_.tokenizer().text_end();
      ids.insert(ids.end(), end.begin(), end.end());
    }
    prompts[i] = Prompt();
    if (ids.empty()) {
      return refuse_input(i, "is empty");
    }
    if (std::cmp_greater(ids.size(), context)) {
      return refuse_input(
          i,
          fmt::format("has {} tokens, but this model's maximum context length is {} tokens",
                      ids.size(), context),
          "context_length_exceeded");
    }
    const auto outside =
        std::find_if(ids.begin(), ids.end(), [&](int32_t id) { return id < 0 || id >= vocab; });
    if (outside != ids.end()) {
      return refuse_input(
          i, fmt::format("has the token {}, the vocabulary has ids 0 to {}", *outside, vocab - 1));
    }
    if (service_.budget() != nullptr &&
        !room_.grow_to(room_.bytes() + ids.size() * sizeof(int32_t))) {
      return absl::UnavailableError(
          "the requests that wait leave no memory for this one: try again later");
    }
  }
  return absl::OkStatus();
}

absl::Status EmbeddingRun::refuse_input(std::size_t input, std::string_view message,
                                        std::string_view code) const {
  const bool is_first = input < fields_.firsts;
  const std::string_view field = is_first ? fields_.first : fields_.last;
  const std::string place =
      is_first && fields_.firsts == 1
          ? std::string(field)
          : fmt::format("{}[{}]", field, input - (is_first ? 0 : fields_.firsts));
  return invalid_field(field, fmt::format("{} {}", place, message), code);
}

absl::StatusOr<bool> EmbeddingRun::advance() {
  for (std::size_t i = first_; i < next_; ++i) {
    if (!inputs_[i].ended) {
      TESSERA_RETURN_IF_ERROR(take(inputs_[i]));
    }
  }
  while (first_ < next_ && inputs_[first_].ended) {
    ++first_;
  }
  while (next_ < inputs_.size() && running_ < kAtOnce) {
    const absl::Status submitted = submit(inputs_[next_]);
    if (absl::IsResourceExhausted(submitted) && running_ > 0) {
      break;
    }
    TESSERA_RETURN_IF_ERROR(submitted);
    ++next_;
    ++running_;
  }
  return first_ == inputs_.size();
}

// Takes the result of an input, if it has ended.
absl::Status EmbeddingRun::take(Input& input) {
  const std::optional<Finish> finish = input.sink->finish();
  if (!finish.has_value()) {
    return absl::OkStatus();
  }
  input.ended = true;
  --running_;
  TESSERA_RETURN_IF_ERROR(status_of(*finish));
  prompt_tokens_ += finish->prompt_tokens;
  cached_tokens_ += finish->cached_tokens;
  if (normalize_) {
    normalize(input.sink->values().first(dimensions_));
  }
  return absl::OkStatus();
}

absl::Status EmbeddingRun::submit(Input& input) {
  GenerateRequest request = each_;
  request.prompt = input.ids;
  request.admitted = each_.admitted && &input == &inputs_.front();  // each further one counts
  auto sink = std::make_shared<Sink>(service_.engine().config().hidden, notify_);
  TESSERA_ASSIGN_OR_RETURN(const Accepted accepted, service_.generate(std::move(request), {sink}));
  input.ids = {};
  input.sink = std::move(sink);
  input.id = accepted.generations.front().id;
  return absl::OkStatus();
}

std::span<const float> EmbeddingRun::embedding(std::size_t input) const {
  return inputs_[input].sink->values().first(dimensions_);
}

double EmbeddingRun::cosine(std::size_t a, std::size_t b) const {
  const std::span<const float> left = embedding(a);
  const std::span<const float> right = embedding(b);
  return std::clamp(std::inner_product(left.begin(), left.end(), right.begin(), 0.0), -1.0, 1.0);
}

}  // namespace tessera
