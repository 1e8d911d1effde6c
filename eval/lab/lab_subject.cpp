#include "eval/lab/lab_subject.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "eval/lab/sequence.h"
#include "eval/run/turn_notes.h"

namespace tessera::lab {
namespace {

KvUse use_of(const Sequence& sequence) {
  KvUse use{.bytes = sequence.bytes(), .tokens = sequence.cache().tokens};
  bool dropped = false;
  for (const HeadCache& head : sequence.cache().heads) {
    use.kept.push_back(head.size());
    dropped = dropped || head.size() < sequence.cache().tokens;
  }
  if (!dropped) use.kept.clear();
  return use;
}

class LabSubject final : public Subject {
 public:
  LabSubject(NamedMethod method, Model& model) : method_(std::move(method)), model_(model) {}

  std::string_view name() const override { return method_.name; }
  bool gives_logits() const override { return true; }

  absl::Status run(std::span<const Job> jobs, const std::function<void()>& on_done) override {
    std::optional<Sequence> root;
    const std::vector<int32_t>* prompt = nullptr;
    for (const Job& job : jobs) {
      if (job.trial->turns.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("--method ", method_.name,
                         ": methods run tasks that ask about a context: continuation, documents, "
                         "and files with questions"));
      }
      if (prompt == nullptr || *prompt != job.trial->prompt) {
        prompt = &job.trial->prompt;
        root.emplace(model_, *method_.method, *prompt);
      }
      run(job, *root);
      on_done();
    }
    return absl::OkStatus();
  }

 private:
  static void run(const Job& job, const Sequence& root) {
    Sequence branch = root;
    TurnNotes notes(job);
    const std::vector<int32_t>& forced = job.trial->forced;
    for (size_t place = 0; place < forced.size(); ++place) {
      if (place > 0 || job.trial->turns.front().asked == 0) {
        notes.note(place, branch.logits());
      }
      // The last token's distribution is not asked for, but its key and value count in the bytes.
      branch.add(forced[place]);
    }
    job.result->acted_from = static_cast<int32_t>(job.trial->prompt.size());
    if (job.measure_kv) {
      job.result->kv = use_of(branch);
    }
  }

  const NamedMethod method_;
  Model& model_;
};

}  // namespace

std::unique_ptr<Subject> make_lab_subject(NamedMethod method, Model& model) {
  return std::make_unique<LabSubject>(std::move(method), model);
}

}  // namespace tessera::lab
