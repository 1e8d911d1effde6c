// Input: a YAML file of settings. Accepted settings without secrets are printed and parsed again.
#include "base/check.h"
#include "base/utf8.h"
#include "server/settings/settings.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const std::string_view yaml = text_of(data, size);
  Settings settings;
  const absl::Status status = apply_yaml(yaml, "fuzz.yaml", settings);
  if (!status.ok()) {
    TESSERA_CHECK(status.message().find("fuzz.yaml:") == 0, "the error does not name the file");
    return 0;
  }
  (void)validate(settings);
  (void)describe(settings);
  for (const SettingsField& field : settings_fields()) {
    if (field.secret && !field.print(settings).empty()) return 0;  // is not printed
  }
  const std::string printed = print_yaml(settings);
  if (!is_valid_utf8(printed)) return 0;  // YAML is UTF-8
  Settings again;
  TESSERA_CHECK(apply_yaml(printed, "printed", again).ok(), "printed settings are not accepted");
  TESSERA_CHECK(print_yaml(again) == printed, "printed settings give other settings");
  return 0;
}
