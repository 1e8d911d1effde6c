#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "eval/report/writers.h"

namespace tessera {
namespace {

using nlohmann::ordered_json;

ordered_json to_json(const std::optional<KvReport>& kv) {
  return kv ? ordered_json{{"bytes", kv->bytes},
                           {"tokens", kv->tokens},
                           {"bytes_per_token", kv->bytes_per_token()}}
            : ordered_json();
}

ordered_json to_json(const Report& report, const MetricReport& metric) {
  ordered_json scores = ordered_json::object();
  for (size_t s = 0; s < metric.subjects.size(); ++s) {
    const std::optional<Interval>& score = metric.subjects[s];
    scores[report.subjects[s].name] =
        score ? ordered_json{{"value", score->value}, {"low", score->low}, {"high", score->high}}
              : ordered_json();
  }
  return {{"name", metric.name},
          {"unit", metric.unit},
          {"better", metric.better == Better::higher ? "higher" : "lower"},
          {"scores", std::move(scores)}};
}

ordered_json to_json(const std::optional<Bounds>& bounds) {
  return bounds
             ? ordered_json{{"value", bounds->value}, {"low", bounds->low}, {"high", bounds->high}}
             : ordered_json();
}

ordered_json to_json(const std::optional<Judgement>& judgement) {
  return judgement ? ordered_json{{"verdict", name_of(judgement->verdict)},
                                  {"reason", judgement->reason},
                                  {"contexts", judgement->contexts},
                                  {"kl", to_json(judgement->kl)},
                                  {"lost", to_json(judgement->lost)}}
                   : ordered_json();
}

// {"f16": of(0), "f32": of(1), ...}
template <class Of>
ordered_json by_subject(const Report& report, Of&& of) {
  ordered_json out = ordered_json::object();
  for (size_t s = 0; s < report.subjects.size(); ++s) {
    out[report.subjects[s].name] = of(s);
  }
  return out;
}

ordered_json to_json(const Report& report, const TaskReport& task) {
  ordered_json out = {{"name", task.name},
                      {"description", task.description},
                      {"items", task.items},
                      {"left_out", task.left_out}};
  out["metrics"] = ordered_json::array();
  for (const MetricReport& metric : task.metrics) {
    out["metrics"].push_back(to_json(report, metric));
  }
  out["kv"] = by_subject(report, [&](size_t s) { return to_json(task.kv[s]); });
  out["judgements"] = by_subject(report, [&](size_t s) { return to_json(task.judgements[s]); });
  out["qualifications"] = ordered_json::array();
  for (const Qualification& length : task.qualifications) {
    out["qualifications"].push_back(
        {{"length", length.length}, {"accuracy", length.accuracy}, {"counts", length.counts}});
  }
  if (task.grid) {
    out["grid"] = {{"lengths", task.grid->lengths},
                   {"length_unit", task.grid->length_title},
                   {"depths", task.grid->depths}};
    out["grid"]["accuracy"] =
        by_subject(report, [&](size_t s) { return ordered_json(task.grid->subjects[s]); });
  }
  if (task.course) {
    out["course"] = {{"positions", task.course->positions}};
    out["course"]["kl"] =
        by_subject(report, [&](size_t s) { return ordered_json(task.course->subjects[s]); });
  }
  for (const ChoiceReport& choice : task.choices) {
    ordered_json entry = {{"id", choice.id}, {"right", choice.right}};
    entry["log_likelihoods"] =
        by_subject(report, [&](size_t s) { return ordered_json(choice.subjects[s]); });
    out["choices"].push_back(std::move(entry));
  }
  return out;
}

ordered_json to_json(const SubjectReport& subject) {
  ordered_json out = {
      {"name", subject.name}, {"description", subject.description}, {"kv", to_json(subject.kv)}};
  out["kl_mean"] = subject.kl ? ordered_json(*subject.kl) : ordered_json();
  out["accuracy"] = subject.accuracy ? ordered_json(*subject.accuracy) : ordered_json();
  out["judgement"] = to_json(subject.judgement);
  if (subject.kept) {
    out["kept"] = {{"layers", subject.kept->layers},
                   {"kv_heads", subject.kept->kv_heads},
                   {"share", subject.kept->share}};
  }
  return out;
}

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) {
    return text;
  }
  std::string out = "\"";
  for (const char c : text) {
    out += c == '"' ? std::string("\"\"") : std::string(1, c);
  }
  return out + "\"";
}

}  // namespace

std::string print_json(const Report& report) {
  ordered_json out = {{"model", report.model},
                      {"device", report.device},
                      {"weights", report.weights},
                      {"seed", report.seed},
                      {"split", report.split},
                      {"seconds", report.seconds},
                      {"cpu_seconds", report.cpu_seconds},
                      {"version", TESSERA_VERSION}};
  out["presets"] = ordered_json::array();
  for (const SubjectReport& subject : report.subjects) {
    out["presets"].push_back(to_json(subject));
  }
  out["tasks"] = ordered_json::array();
  for (const TaskReport& task : report.tasks) {
    out["tasks"].push_back(to_json(report, task));
  }
  return out.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string print_csv(const Report& report) {
  std::string text = "task,metric,unit,preset,value,low,high,kv_bytes,kv_tokens\n";
  for (const TaskReport& task : report.tasks) {
    for (const MetricReport& metric : task.metrics) {
      for (size_t s = 0; s < metric.subjects.size(); ++s) {
        const std::optional<Interval>& score = metric.subjects[s];
        const std::optional<KvReport>& kv = task.kv[s];
        absl::StrAppend(&text, quoted(task.name), ",", quoted(metric.name), ",", metric.unit, ",",
                        quoted(report.subjects[s].name), ",");
        absl::StrAppend(
            &text, score ? absl::StrCat(score->value, ",", score->low, ",", score->high) : ",,");
        absl::StrAppend(&text, kv ? absl::StrCat(",", kv->bytes, ",", kv->tokens) : ",,", "\n");
      }
    }
  }
  return text;
}

absl::Status save_file(const std::filesystem::path& file, const std::string& text) {
  std::ofstream stream(file, std::ios::binary);
  stream << text << std::flush;
  return stream ? absl::OkStatus()
                : absl::InternalError(absl::StrCat(file.string(), " cannot be written"));
}

}  // namespace tessera
