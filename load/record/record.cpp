#include "load/record/record.h"

#include <cmath>

#include "load/request/json_text.h"

namespace tessera::load {
namespace {

using nlohmann::json;

constexpr Verdict kVerdicts[] = {Verdict::unchecked, Verdict::correct, Verdict::differs,
                                 Verdict::missed, Verdict::wrong};

double micros(double seconds) {
  return std::round(seconds * 1e6) / 1e6;
}

ErrorClass error_named(const std::string& text) {
  for (int i = 0; i < kErrorClasses; ++i) {
    if (text == name(static_cast<ErrorClass>(i))) return static_cast<ErrorClass>(i);
  }
  return ErrorClass::none;
}

json usage_json(const ReportedUsage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.total_tokens},
          {"cached_tokens", usage.cached_tokens},
          {"kv_bytes", usage.kv_bytes}};
}

ReportedUsage read_usage(const json& usage) {
  return {.prompt_tokens = usage.value("prompt_tokens", int64_t{0}),
          .completion_tokens = usage.value("completion_tokens", int64_t{0}),
          .total_tokens = usage.value("total_tokens", int64_t{-1}),
          .cached_tokens = usage.value("cached_tokens", int64_t{-1}),
          .kv_bytes = usage.value("kv_bytes", int64_t{-1})};
}

RequestRecord read_record(const json& line) {
  RequestRecord record;
  record.number = line.at("number").get<uint64_t>();
  record.session = line.at("session").get<uint64_t>();
  record.turn = line.at("turn").get<int32_t>();
  record.workload = line.at("workload").get<std::string>();
  record.intended = line.at("intended").get<double>();
  record.sent = line.at("sent").get<double>();
  record.texts = line.at("texts").get<std::vector<double>>();
  record.end = line.at("end").get<double>();
  record.faulty = line.value("faulty", false);
  record.outcome.error = error_named(line.at("error").get<std::string>());
  record.outcome.status = line.value("status", 0);
  record.outcome.message = line.value("message", std::string());
  if (line.contains("retry_after")) record.outcome.retry_after = line["retry_after"].get<double>();
  if (line.contains("usage")) record.usage = read_usage(line["usage"]);
  record.counted_tokens = line.value("counted_tokens", int64_t{-1});
  for (const Verdict verdict : kVerdicts) {
    if (line.at("verdict").get<std::string>() == name(verdict)) record.verdict = verdict;
  }
  record.why = line.value("why", std::string());
  record.answer = line.value("answer", std::string());
  record.question = line.value("question", std::string());
  return record;
}

}  // namespace

std::string_view name(Verdict verdict) {
  switch (verdict) {
    case Verdict::unchecked:
      return "unchecked";
    case Verdict::correct:
      return "correct";
    case Verdict::differs:
      return "differs";
    case Verdict::missed:
      return "missed";
    case Verdict::wrong:
      return "wrong";
  }
  return "unchecked";
}

std::string print_record(const RequestRecord& record) {
  json texts = json::array();
  for (const double time : record.texts) {
    texts.push_back(micros(time));
  }
  json line = {{"number", record.number},
               {"session", record.session},
               {"turn", record.turn},
               {"workload", record.workload},
               {"intended", micros(record.intended)},
               {"sent", micros(record.sent)},
               {"texts", std::move(texts)},
               {"end", micros(record.end)},
               {"error", name(record.outcome.error)},
               {"status", record.outcome.status},
               {"counted_tokens", record.counted_tokens},
               {"verdict", name(record.verdict)}};
  if (record.faulty) line["faulty"] = true;
  if (!record.outcome.message.empty()) line["message"] = record.outcome.message;
  if (record.outcome.retry_after) line["retry_after"] = *record.outcome.retry_after;
  if (record.usage) line["usage"] = usage_json(*record.usage);
  if (!record.why.empty()) line["why"] = record.why;
  if (!record.answer.empty()) line["answer"] = record.answer;
  if (!record.question.empty()) line["question"] = record.question;
  return print_json(line);
}

std::optional<RequestRecord> parse_record(std::string_view text) {
  const json line = parse_json(text);
  if (!line.is_object()) {
    return std::nullopt;
  }
  try {
    return read_record(line);
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

}  // namespace tessera::load
