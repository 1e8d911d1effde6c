#include "load/client/openai.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "load/client/sse.h"
#include "load/request/json_text.h"

namespace tessera::load {
namespace {

using nlohmann::json;

constexpr size_t kShownBody = 300;
constexpr uint64_t kMaxCount = uint64_t{1} << 53;

// Returns: the fallback also for counts that no server can mean, whose sums would overflow.
int64_t count_at(const json& object, const char* name, int64_t fallback) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_unsigned() && found->get<uint64_t>() <= kMaxCount
             ? found->get<int64_t>()
             : fallback;
}

ReportedUsage read_usage(const json& usage) {
  ReportedUsage read;
  read.prompt_tokens = count_at(usage, "prompt_tokens", 0);
  read.completion_tokens = count_at(usage, "completion_tokens", 0);
  read.total_tokens = count_at(usage, "total_tokens", -1);
  if (const auto details = usage.find("prompt_tokens_details");
      details != usage.end() && details->is_object()) {
    read.cached_tokens = count_at(*details, "cached_tokens", -1);
  }
  if (const auto kv = usage.find("kv_cache"); kv != usage.end() && kv->is_object()) {
    read.kv_bytes = count_at(*kv, "bytes", -1);
  }
  return read;
}

// Entries of log probabilities in a choice: of a chat, or of a completion; -1: none.
int64_t counted_tokens(const json& choice) {
  const auto found = choice.find("logprobs");
  if (found == choice.end() || !found->is_object()) {
    return -1;
  }
  for (const char* name : {"content", "tokens"}) {
    if (const auto list = found->find(name); list != found->end() && list->is_array()) {
      return static_cast<int64_t>(list->size());
    }
  }
  return -1;
}

// Returns: the text of a choice: a chat's delta, or a completion's text.
std::string_view text_of(const json& choice) {
  const json* place = &choice;
  const char* name = "text";
  if (const auto delta = choice.find("delta"); delta != choice.end() && delta->is_object()) {
    place = &*delta;
    name = "content";
  }
  const auto text = place->find(name);
  return text != place->end() && text->is_string()
             ? std::string_view(text->get_ref<const std::string&>())
             : std::string_view();
}

json message_json(const ChatMessage& message) {
  json printed = {{"role", message.role}, {"content", message.content}};
  for (const ToolCall& call : message.tool_calls) {
    printed["tool_calls"].push_back(
        {{"id", call.id},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  if (!message.tool_call_id.empty()) printed["tool_call_id"] = message.tool_call_id;
  return printed;
}

class OpenAiReader final : public HttpResponse {
 public:
  explicit OpenAiReader(std::shared_ptr<GenerationEvents> events) : events_(std::move(events)) {}

  void sent() override { events_->sent(); }
  int64_t events() const override { return texts_; }

  void head(const HttpHead& head) override {
    end_.status = head.status;
    if (double seconds = 0; absl::SimpleAtod(head.retry_after, &seconds)) {
      end_.retry_after = seconds;
    }
    streamed_ = head.status == 200 && head.event_stream;
  }

  void body(std::string_view bytes) override {
    if (!streamed_) {
      other_.append(bytes.substr(0, kShownBody - std::min(kShownBody, other_.size())));
      return;
    }
    if (!sse_.feed(bytes, [this](std::string_view payload) { event(payload); })) {
      fail(ErrorClass::malformed, "an event of more than 16 MiB");
    }
  }

  void ended(CallEnd how, const std::string& message) override {
    if (how != CallEnd::complete) {
      fail(class_of(how), message);
    } else if (!streamed_) {
      fail(class_of(end_.status), other_);
    } else if (!done_) {
      fail(ErrorClass::cut_short, "the stream ended without [DONE]");
    }
    events_->ended(end_, answer_);
  }

 private:
  static ErrorClass class_of(CallEnd how) {
    switch (how) {
      case CallEnd::complete:
        return ErrorClass::none;
      case CallEnd::no_connection:
        return ErrorClass::no_connection;
      case CallEnd::connection_lost:
        return ErrorClass::connection_lost;
      case CallEnd::broken:
        return ErrorClass::cut_short;
      case CallEnd::malformed:
        return ErrorClass::malformed;
      case CallEnd::timed_out:
        return ErrorClass::timed_out;
      case CallEnd::abandoned:
        return ErrorClass::abandoned;
    }
    return ErrorClass::malformed;
  }

  static ErrorClass class_of(int status) {
    if (status == 429) return ErrorClass::rejected;
    if (status >= 500) return ErrorClass::server_error;
    return status >= 400 ? ErrorClass::client_error : ErrorClass::malformed;
  }

  // The first error stays.
  void fail(ErrorClass error, std::string_view message) {
    if (end_.error == ErrorClass::none) {
      end_.error = error;
      end_.message = std::string(message.substr(0, kShownBody));
    }
  }

  void event(std::string_view payload) {
    if (payload == "[DONE]") {
      done_ = true;
      return;
    }
    const json parsed = parse_json(payload);
    if (!parsed.is_object()) {
      fail(ErrorClass::malformed,
           absl::StrCat("no JSON: ", std::string(payload.substr(0, kShownBody))));
      return;
    }
    if (parsed.contains("error")) {
      fail(ErrorClass::server_error, print_json(parsed["error"]));
      return;
    }
    if (const auto usage = parsed.find("usage"); usage != parsed.end() && usage->is_object()) {
      answer_.usage = read_usage(*usage);
    }
    if (const auto choices = parsed.find("choices");
        choices != parsed.end() && choices->is_array() && !choices->empty()) {
      choice(choices->front());
    }
  }

  void choice(const json& choice) {
    if (const int64_t tokens = counted_tokens(choice); tokens >= 0) {
      answer_.counted_tokens = std::max<int64_t>(answer_.counted_tokens, 0) + tokens;
    }
    if (const auto reason = choice.find("finish_reason");
        reason != choice.end() && reason->is_string()) {
      answer_.finish_reason = reason->get<std::string>();
    }
    if (const std::string_view text = text_of(choice); !text.empty()) {
      answer_.text.append(text);
      ++texts_;
      events_->received(text);
    }
  }

  std::shared_ptr<GenerationEvents> events_;
  SseReader sse_;
  Answer answer_;
  GenerationEnd end_;
  std::string other_;  // beginning of a body that is no stream
  int64_t texts_ = 0;
  bool streamed_ = false;
  bool done_ = false;
};

}  // namespace

std::string print_body(const LoadRequest& request, const std::string& model) {
  json body = request.fields;
  body["model"] = model;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const bool chat = !request.messages.empty();
  if (chat) {
    json messages = json::array();
    for (const ChatMessage& message : request.messages) {
      messages.push_back(message_json(message));
    }
    body["messages"] = std::move(messages);
  } else {
    body["prompt"] = request.prompt;
  }
  if (request.max_tokens > 0) body["max_tokens"] = request.max_tokens;
  if (request.ignore_eos) body["ignore_eos"] = true;
  if (request.count_tokens) {
    body["logprobs"] = chat ? json(true) : json(0);
  }
  return print_json(body);
}

std::shared_ptr<HttpResponse> make_openai_reader(std::shared_ptr<GenerationEvents> events) {
  return std::make_shared<OpenAiReader>(std::move(events));
}

}  // namespace tessera::load
