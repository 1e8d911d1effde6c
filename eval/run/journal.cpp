#include "eval/run/journal.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

using nlohmann::json;

// FNV-1a over all inputs that determine a trial's result.
class Fingerprint {
 public:
  void add(uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      hash_ = (hash_ ^ (value & 0xFF)) * 0x100000001B3u;
      value >>= 8;
    }
  }
  void add(const std::vector<int32_t>& ids) {
    add(ids.size());
    for (const int32_t id : ids) {
      add(static_cast<uint64_t>(id));
    }
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xCBF29CE484222325u;
};

std::string key_of(std::string_view task, std::string_view subject, const Item& item) {
  Fingerprint print;
  for (const Trial& trial : item.trials) {
    print.add(trial.prompt);
    // Generated tokens follow from the prompt, so they are not hashed.
    print.add(trial.generate > 0 ? std::vector<int32_t>() : trial.forced);
    print.add(static_cast<uint64_t>(trial.generate));
    print.add(static_cast<uint64_t>(1000 * trial.temperature));
    print.add(trial.seed);
    print.add(trial.compare ? 1 : 0);
    print.add(static_cast<uint64_t>(trial.asked));
    for (const Turn& turn : trial.turns) {
      print.add(static_cast<uint64_t>(turn.asked));
      print.add(static_cast<uint64_t>(turn.answered));
    }
  }
  return absl::StrCat(std::string(task), "/", item.id, "/", std::string(subject), "/",
                      absl::Hex(print.value(), absl::kZeroPad16));
}

json to_json(const TrialResult& result) {
  json out = {{"logprobs", result.logprobs}, {"likeliest", result.likeliest}};
  if (!result.kl.empty()) {
    out["kl"] = result.kl;
    out["agrees"] = result.agrees;
  }
  if (!result.generated.empty()) {
    out["generated"] = result.generated;
  }
  if (!result.text.empty()) {
    out["text"] = result.text;
  }
  if (result.acted_from) {
    out["acted_from"] = *result.acted_from;
  }
  if (result.kv) {
    out["kv"] = {result.kv->bytes, result.kv->tokens, result.kv->kept};
  }
  return out;
}

TrialResult from_json(const json& in) {
  TrialResult result;
  in.at("logprobs").get_to(result.logprobs);
  in.at("likeliest").get_to(result.likeliest);
  result.kl = in.value("kl", result.kl);
  result.agrees = in.value("agrees", result.agrees);
  result.generated = in.value("generated", result.generated);
  result.text = in.value("text", result.text);
  if (in.contains("acted_from")) {
    result.acted_from = in["acted_from"].get<int32_t>();
  }
  if (in.contains("kv")) {
    const json& kv = in["kv"];
    result.kv = KvUse{kv.at(0).get<int64_t>(), kv.at(1).get<int64_t>(),
                      kv.at(2).get<std::vector<int32_t>>()};
  }
  return result;
}

}  // namespace

absl::StatusOr<Journal> Journal::open(const std::filesystem::path& file, std::string_view model) {
  Journal journal;
  if (file.empty()) {
    return journal;
  }
  journal.file_ = file;
  std::ifstream in(file, std::ios::binary);
  std::string line;
  int64_t number = 0;
  uintmax_t whole = 0;  // bytes of complete lines
  try {
    for (; std::getline(in, line) && !in.eof(); whole += line.size() + 1) {
      const json entry = json::parse(line);
      if (++number == 1) {
        if (const auto of = entry.at("model").get<std::string>(); of != model) {
          return absl::InvalidArgumentError(absl::StrCat("--resume: ", file.string(), " is of ", of,
                                                         ", not of ", std::string(model)));
        }
        continue;
      }
      std::vector<TrialResult>& results = journal.entries_[entry.at("key").get<std::string>()];
      results.clear();
      for (const json& result : entry.at("results")) {
        results.push_back(from_json(result));
      }
    }
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("--resume: ", file.string(), ":", number, ": ", error.what()));
  }
  in.close();
  std::error_code ignored;  // open() below reports errors
  if (std::filesystem::exists(file, ignored)) {
    std::filesystem::resize_file(file, whole, ignored);
  }
  journal.out_.open(file, std::ios::binary | std::ios::app);
  if (number == 0) {
    journal.out_ << json{{"model", model}}.dump() << '\n' << std::flush;
  }
  if (!journal.out_) {
    return absl::InternalError(absl::StrCat("--resume: ", file.string(), " cannot be written"));
  }
  return journal;
}

const std::vector<TrialResult>* Journal::find(std::string_view task, std::string_view subject,
                                              const Item& item) const {
  const auto found = entries_.find(key_of(task, subject, item));
  return found == entries_.end() ? nullptr : &found->second;
}

absl::Status Journal::add(std::string_view task, std::string_view subject, const Item& item,
                          const std::vector<TrialResult>& results) {
  if (file_.empty()) {
    return absl::OkStatus();
  }
  json list = json::array();
  for (const TrialResult& result : results) {
    list.push_back(to_json(result));
  }
  const json entry = {{"key", key_of(task, subject, item)}, {"results", std::move(list)}};
  // A model may generate text that is not UTF-8.
  out_ << entry.dump(-1, ' ', false, json::error_handler_t::replace) << '\n' << std::flush;
  return out_ ? absl::OkStatus()
              : absl::InternalError(absl::StrCat("--resume: ", file_.string(), " is full"));
}

}  // namespace tessera
