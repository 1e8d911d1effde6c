#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "load/check/json_schema.h"
#include "load/request/json_text.h"
#include "load/workload/factories.h"
#include "load/workload/words.h"

namespace tessera::load {
namespace {

struct JsonSettings {
  std::string name;
  nlohmann::json schema;
  int32_t output = 256;
  bool send_format = true;  // response_format in the body
  nlohmann::json fields;
};

class JsonWorkload final : public Workload {
 public:
  explicit JsonWorkload(JsonSettings settings) : settings_(std::move(settings)) {}

  std::unique_ptr<Session> session(uint64_t number, uint64_t seed) const override {
    SeededRandom random(seed_of(seed, number));
    LoadRequest request;
    request.workload = settings_.name;
    request.session = number;
    request.messages = {
        {"user", absl::StrCat("Write JSON about: ", write_words(random, 8),
                              ". Answer with JSON only, which fits this JSON Schema: ",
                              print_json(settings_.schema))}};
    request.max_tokens = settings_.output;
    request.fields = settings_.fields;
    if (settings_.send_format) {
      request.fields["response_format"] = {
          {"type", "json_schema"},
          {"json_schema", {{"name", "answer"}, {"strict", true}, {"schema", settings_.schema}}}};
    }
    request.expected.kind = Expectation::Kind::schema;
    request.expected.schema = settings_.schema;
    return std::make_unique<SingleRequest>(std::move(request));
  }

 private:
  JsonSettings settings_;
};

}  // namespace

WorkloadOr make_json_workload(const WorkloadSpec& spec, const ServerTraits& /*server*/) {
  SpecReader reader(spec);
  JsonSettings settings;
  settings.name = reader.text("name", spec.name);
  const std::string path = reader.text("schema");
  settings.output = reader.integer("output", 256, 1, 1'000'000);
  settings.send_format = reader.text("format", "on") != "off";
  settings.fields = reader.fields();
  TESSERA_ASSIGN_OR_RETURN(std::ifstream file, reader.finish_and_open("schema"));
  settings.schema = parse_json(std::string(std::istreambuf_iterator<char>(file), {}));
  if (settings.schema.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not JSON"));
  }
  if (const absl::Status status = check_schema(settings.schema); !status.ok()) {
    return status;
  }
  return std::make_unique<JsonWorkload>(std::move(settings));
}

}  // namespace tessera::load
