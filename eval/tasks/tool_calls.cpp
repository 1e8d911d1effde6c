#include "eval/tasks/tool_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "eval/tasks/calls.h"

namespace tessera {
namespace {

using nlohmann::ordered_json;

struct Tool {
  const char* name;
  const char* description;
  const char* properties;  // JSON; all of them are required
};

// Every chat has all of them, so a model must choose.
constexpr Tool kTools[] = {
    {"read_log", "Returns the lines of a log.", R"({"path": {"type": "string"}})"},
    {"find_order", "Finds an order by its number.", R"({"number": {"type": "integer"}})"},
    {"get_weather", "Tells the weather of one city.",
     R"({"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}})"},
    {"send_message", "Sends a text to one person.",
     R"({"to": {"type": "string"}, "text": {"type": "string"}})"},
    {"set_light", "Sets the light of one room.",
     R"({"room": {"enum": ["kitchen", "office", "hall", "attic"]},
         "mode": {"enum": ["warm", "cold", "night", "party"]}, "level": {"type": "integer"}})"},
    {"create_order", "Creates an order for one customer.",
     R"({"customer": {"type": "object", "properties": {"name": {"type": "string"},
                                                       "city": {"type": "string"}}},
         "items": {"type": "array", "items": {"type": "object", "properties": {
             "article": {"type": "string"}, "count": {"type": "integer"}}}}})"},
};

constexpr std::string_view kCities[] = {"Oslo",   "Rome",   "Paris",  "Madrid", "Berlin", "Vienna",
                                        "Dublin", "Lisbon", "Prague", "Athens", "Warsaw", "Tokyo"};
constexpr std::string_view kUnits[] = {"celsius", "fahrenheit"};
constexpr std::string_view kRooms[] = {"kitchen", "office", "hall", "attic"};
constexpr std::string_view kModes[] = {"warm", "cold", "night", "party"};
constexpr std::string_view kUnicodeNames[] = {"Zoë",  "Łukasz", "Søren",  "Ayşe",
                                              "Юлия", "小明",   "ともこ", "Ñandú"};
constexpr std::string_view kUnicodeTexts[] = {"Grüße aus Köln", "Привет из Москвы",
                                              "今晚八点见",     "¿Dónde está Íñigo?",
                                              "un café crème",  "Ça va à Nîmes"};

// What the last message asks, and what stands for it in the log.
struct Request {
  std::string text;
  ordered_json calls = ordered_json::array();
  std::string line{};  // of the log; empty: none
  std::string name{};  // that no other line may have

  void add(const char* tool, ordered_json arguments) {
    calls.push_back({{"name", tool}, {"arguments", std::move(arguments)}});
  }
};

// Draws requests.
class Requests {
 public:
  explicit Requests(Material& material) : material_(material) {}

  Request single() {
    if (material_.random().below(2) == 0) return find_order();
    Request request;
    const std::string city = one_of(kCities);
    const std::string unit = one_of(kUnits);
    request.text = absl::StrCat("What is the weather in ", city, ", in ", unit, "?");
    request.add("get_weather", {{"city", city}, {"unit", unit}});
    return request;
  }

  Request parallel() {
    Request request;
    const std::string unit = one_of(kUnits);
    std::vector<std::string> cities;
    const size_t count = material_.random().between(2, 3);
    while (cities.size() < count) {
      std::string city = one_of(kCities);
      if (std::find(cities.begin(), cities.end(), city) == cities.end()) {
        request.add("get_weather", {{"city", city}, {"unit", unit}});
        cities.push_back(std::move(city));
      }
    }
    request.text = absl::StrCat("What is the weather in each of these cities, in ", unit, ": ",
                                absl::StrJoin(cities, ", "), "?");
    return request;
  }

  Request nested() {
    Request request;
    const std::string name = material_.draw(Material::Kind::name);
    const std::string city = one_of(kCities);
    request.text = absl::StrCat("Create an order for the customer ", name, " in ", city, ":");
    ordered_json items = ordered_json::array();
    const size_t count = material_.random().between(1, 3);
    for (size_t i = 0; i < count; ++i) {
      const std::string article = material_.draw(Material::Kind::word);
      const size_t pieces = material_.random().between(2, 60);
      absl::StrAppend(&request.text, i == 0 ? " " : ", ", "article \"", article, "\", count ",
                      pieces);
      items.push_back({{"article", article}, {"count", pieces}});
    }
    request.text += ".";
    request.add("create_order", {{"customer", {{"name", name}, {"city", city}}}, {"items", items}});
    return request;
  }

  Request enumerated() {
    Request request;
    const std::string room = one_of(kRooms);
    const std::string mode = one_of(kModes);
    const size_t level = material_.random().between(1, 99);
    request.text = absl::StrCat("Set the light of the room ", room, " to the mode ", mode,
                                " at the level ", level, ".");
    request.add("set_light", {{"room", room}, {"mode", mode}, {"level", level}});
    return request;
  }

  Request unicode() {
    Request request;
    const std::string name = one_of(kUnicodeNames);
    const std::string text =
        absl::StrCat(one_of(kUnicodeTexts), " ", material_.draw(Material::Kind::number));
    request.text = absl::StrCat("Send to ", name, " exactly this text: \"", text, "\"");
    request.add("send_message", {{"to", name}, {"text", text}});
    return request;
  }

  Request turns() {
    const std::string number = order_number();
    Request request;
    request.name = material_.draw(Material::Kind::name);
    request.text = absl::StrCat("Find the order of ", request.name, " by its number in the log.");
    request.line = line(number, request.name);
    request.add("find_order", {{"number", std::stoll(number)}});
    return request;
  }

  // Returns: a line of the log that has not this name.
  std::string other_line(const std::string& name) {
    std::string other;
    do {
      other = material_.draw(Material::Kind::name);
    } while (other == name);
    return line(order_number(), other);
  }

  size_t below(size_t count) { return material_.random().below(count); }

 private:
  Request find_order() {
    const std::string number = order_number();
    Request request;
    request.text = absl::StrCat("Find the order ", number, ".");
    request.add("find_order", {{"number", std::stoll(number)}});
    return request;
  }

  // Returns: a number whose JSON is its text.
  std::string order_number() {
    std::string number;
    do {
      number = material_.draw(Material::Kind::number);
    } while (number.front() == '0');
    return number;
  }

  std::string line(const std::string& number, const std::string& name) {
    return absl::StrCat("order ", number, ": customer ", name, ", article ",
                        material_.draw(Material::Kind::word), ", sent to ", one_of(kCities), "\n");
  }

  std::string one_of(std::span<const std::string_view> words) {
    return std::string(material_.random().choice(words));
  }

  Material& material_;
};

struct Kind {
  const char* name;
  Request (Requests::*draw)();
};

constexpr Kind kKinds[] = {{"single", &Requests::single},   {"parallel", &Requests::parallel},
                           {"nested", &Requests::nested},   {"enum", &Requests::enumerated},
                           {"unicode", &Requests::unicode}, {"turns", &Requests::turns}};

std::vector<std::string> described_tools() {
  std::vector<std::string> tools;
  for (const Tool& tool : kTools) {
    const ordered_json properties = ordered_json::parse(tool.properties);
    ordered_json required = ordered_json::array();
    for (const auto& [name, unused] : properties.items()) {
      required.push_back(name);
    }
    const ordered_json function = {
        {"name", tool.name},
        {"description", tool.description},
        {"parameters", {{"type", "object"}, {"properties", properties}, {"required", required}}}};
    tools.push_back(ordered_json({{"type", "function"}, {"function", function}}).dump());
  }
  return tools;
}

// Turns requests into items for one model.
class Chats {
 public:
  Chats(const ChatTemplate& chat, const Tokenizer& tokenizer) : chat_(chat), tokenizer_(tokenizer) {
    for (const auto& [id, to] : {std::pair(tokenizer.bos_id(), &variables_.bos_token),
                                 std::pair(tokenizer.eos_id(), &variables_.eos_token)}) {
      if (id) *to = tokenizer.token_bytes(*id, true);
    }
    variables_.unix_seconds = 1'760'000'000;  // some templates print the date
  }

  // Errors: Unimplemented unless the template prints the call of the log as it is scored.
  absl::Status check_notation() const {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<TextSegment> segments, render("Go on.", "line\n"));
    std::string text;
    for (const TextSegment& segment : segments) {
      text += segment.text;
    }
    const std::vector<TextCall> calls = calls_in(text);
    const TextCall first{kTools[0].name, ordered_json::parse(kFirstArguments).dump()};
    if (std::find(calls.begin(), calls.end(), first) != calls.end()) return absl::OkStatus();
    return absl::UnimplementedError(
        "the task tools reads calls that are JSON objects with \"name\" and \"arguments\", and "
        "this "
        "model's chat template writes others");
  }

  // Fills the log up to `length` tokens.
  absl::StatusOr<Item> item(const Request& request, int32_t length, Requests& requests) const {
    TESSERA_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, tokens_of(request, {request.line}));
    if (std::ssize(prompt) > length) {
      return absl::InvalidArgumentError(
          absl::StrCat("the task tools: a chat with an empty log takes ", prompt.size(),
                       " tokens of this model, more than ", length, " (--lengths)"));
    }
    std::vector<std::string> lines;
    for (int64_t room = length - std::ssize(prompt);;) {
      std::string line = requests.other_line(request.name);
      room -= size_of(line);
      if (room < 0) break;
      lines.push_back(std::move(line));
    }
    const auto place = static_cast<std::ptrdiff_t>(requests.below(lines.size() + 1));
    // Tokens may merge between lines, so the whole chat is counted again.
    for (;;) {
      std::vector<std::string> log = lines;
      log.insert(log.begin() + std::min(place, std::ssize(log)), request.line);
      TESSERA_ASSIGN_OR_RETURN(prompt, tokens_of(request, log));
      const int64_t beyond = std::ssize(prompt) - length;
      if (beyond <= 0 || lines.empty()) break;
      const int64_t dropped = 1 + beyond * std::ssize(lines) / std::ssize(prompt);
      lines.resize(lines.size() - static_cast<size_t>(dropped));
    }
    Item item;
    item.length = length;
    item.answer = request.calls.dump();
    item.trials.push_back({.prompt = std::move(prompt), .generate = room_for(request)});
    return item;
  }

 private:
  static constexpr char kFirstArguments[] = R"({"path":"orders.log"})";
  // Of nine letters, because templates of Mistral refuse any other.
  static constexpr char kFirstId[] = "tesseraid";

  absl::StatusOr<std::vector<TextSegment>> render(const std::string& asked,
                                                  const std::string& log) const {
    const ToolCall first{.id = kFirstId, .name = kTools[0].name, .arguments = kFirstArguments};
    Conversation conversation;
    conversation.tools = tools_;
    conversation.messages = {
        {.role = "user", .content = "Read the log orders.log."},
        {.role = "assistant", .tool_calls = {first}},
        {.role = "tool", .content = log, .tool_call_id = kFirstId, .name = kTools[0].name},
        {.role = "assistant", .content = "I have read the log."},
        {.role = "user", .content = asked}};
    return chat_.render(conversation, variables_);
  }

  absl::StatusOr<std::vector<int32_t>> tokens_of(const Request& request,
                                                 const std::vector<std::string>& log) const {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<TextSegment> segments,
                             render(request.text, absl::StrJoin(log, "")));
    return tokenizer_.encode(segments, false);
  }

  int64_t size_of(const std::string& text) const {
    const TextSegment segment{text, false};
    return std::ssize(tokenizer_.encode({&segment, 1}, false));
  }

  // A model may write more spaces than the expected calls have, and marks around each call.
  int32_t room_for(const Request& request) const {
    return static_cast<int32_t>(size_of(request.calls.dump()) * 3 / 2) + 48;
  }

  const ChatTemplate& chat_;
  const Tokenizer& tokenizer_;
  ChatTemplate::Variables variables_;
  const std::vector<std::string> tools_ = described_tools();
};

}  // namespace

absl::StatusOr<Task> make_tool_calls(const ToolCallGrid& grid, const ChatTemplate& chat,
                                     const Tokenizer& tokenizer, Material material) {
  Task task{.name = "tools",
            .description = "calls of tools that chats with a long log ask for",
            .scoring = Scoring::calls};
  const Chats chats(chat, tokenizer);
  TESSERA_RETURN_IF_ERROR(chats.check_notation());
  Requests requests(material);
  for (const int32_t length : grid.lengths) {
    for (int32_t i = 0; i < grid.cases; ++i) {
      const Kind& kind = kKinds[static_cast<size_t>(i) % std::size(kKinds)];
      TESSERA_ASSIGN_OR_RETURN(Item item, chats.item((requests.*kind.draw)(), length, requests));
      item.id = absl::StrCat(kind.name, " ", length, "#", i);
      task.items.push_back(std::move(item));
    }
  }
  return task;
}

}  // namespace tessera
