#include "load/workload/workload.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "load/request/variates.h"
#include "load/workload/factories.h"

namespace tessera::load {
namespace {

struct Family {
  const char* name;
  WorkloadOr (*make)(const WorkloadSpec&, const ServerTraits&);
  const char* help;
};

constexpr Family kFamilies[] = {
    {"chat", make_chat_workload, "random words: input, output (tokens), prefix, groups"},
    {"prefix", make_chat_workload, "chat whose prompts share a prefix: prefix=512, groups=4"},
    {"turns", make_chat_workload, "chats: turns=8, think=2 (s), input=640, followup=20"},
    {"agent", make_chat_workload,
     "growing context, results of tools: turns=10, followup=100-400, calls=0 or 1"},
    {"recall", make_recall_workload, "planted keys, checked: keys=4, input, prefix, groups"},
    {"repeat", make_repeat_workload,
     "the idle server's answers, checked: prompts=16, input, output, prefix, groups"},
    {"json", make_json_workload, "answers that fit a JSON schema, checked: schema=FILE, output"},
    {"file", make_file_workload,
     "prompts of FILE.jsonl (messages, prompt, ShareGPT): path=FILE, output"},
    {"trace", make_trace_workload,
     "Azure CSV, Mooncake or Bailian JSONL: path=FILE, speed=1, lengths=1"},
};

}  // namespace

WorkloadOr make_workload(const WorkloadSpec& spec, const ServerTraits& server) {
  for (const Family& family : kFamilies) {
    if (spec.name == family.name) {
      return family.make(spec, server);
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no workload '", spec.name, "'; there are:\n", describe_workloads()));
}

std::string describe_workloads() {
  std::string text;
  for (const Family& family : kFamilies) {
    absl::StrAppend(&text, "  ", family.name, std::string(8 - std::string(family.name).size(), ' '),
                    family.help, "\n");
  }
  return text;
}

void Mix::add(std::unique_ptr<Workload> workload, double weight) {
  TESSERA_CHECK(weight > 0, "a weight is above 0");
  parts_.push_back({std::move(workload), weight});
  total_ += weight;
}

std::unique_ptr<Session> Mix::session(uint64_t number, uint64_t seed) const {
  double place = Variates(seed_of(~seed, number)).uniform() * total_;
  size_t part = 0;
  while (part + 1 < parts_.size() && place >= parts_[part].weight) {
    place -= parts_[part].weight;
    ++part;
  }
  return parts_[part].workload->session(number, seed);
}

std::optional<uint64_t> Mix::sessions() const {
  return parts_.size() == 1 ? parts_[0].workload->sessions() : std::nullopt;
}

std::optional<double> Mix::start_of(uint64_t number) const {
  return parts_.size() == 1 ? parts_[0].workload->start_of(number) : std::nullopt;
}

std::vector<Workload*> Mix::all() const {
  std::vector<Workload*> workloads;
  for (const Part& part : parts_) {
    workloads.push_back(part.workload.get());
  }
  return workloads;
}

}  // namespace tessera::load
