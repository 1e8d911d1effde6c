#include "server/settings/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/kv/kv_presets.h"
#include "server/start/command_line.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

absl::StatusOr<CommandLine> parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "tessera-server");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

std::string error_of(std::vector<const char*> arguments) {
  return std::string(parse(std::move(arguments)).status().message());
}

std::string yaml_error(std::string_view yaml) {
  Settings settings;
  return std::string(apply_yaml(yaml, "server.yaml", settings).message());
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

class ConfigFile {
 public:
  explicit ConfigFile(std::string_view yaml)
      : path_(std::filesystem::path(::testing::TempDir()) / "tessera_settings_test.yaml") {
    std::ofstream(path_) << yaml;
  }
  ~ConfigFile() { std::filesystem::remove(path_); }
  const char* path() const { return path_.c_str(); }

 private:
  std::filesystem::path path_;
};

TEST(Settings, FlagsReachTheirFields) {
  const auto command = parse({"--model",
                              "a/b",
                              "--http-port",
                              "81",
                              "--weights",
                              "int8",
                              "--kv",
                              "k4v8",
                              "--kv-memory",
                              "2GiB",
                              "--isa",
                              "scalar",
                              "--threads",
                              "3",
                              "--context",
                              "77",
                              "--max-step-tokens",
                              "5",
                              "--max-sequences=6",
                              "--max-queue",
                              "7",
                              "--drain-timeout",
                              "1500ms"});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_FALSE(command->text);
  const Settings& settings = command->settings;
  EXPECT_EQ(settings.model, "a/b");
  EXPECT_EQ(settings.http.port, 81);
  EXPECT_EQ(settings.weights, WeightFormat::int8);
  EXPECT_EQ(settings.engine.kv, uniform_kv(kKvK4V8));
  EXPECT_EQ(settings.engine.kv_bytes, int64_t{2} << 30);
  EXPECT_EQ(settings.isa, CpuIsa::scalar);
  EXPECT_EQ(settings.threads, 3);
  EXPECT_EQ(settings.context, 77);
  EXPECT_EQ(settings.max_step_tokens, 5);
  EXPECT_EQ(settings.max_sequences, 6);
  EXPECT_EQ(settings.engine.max_queue, 7);
  EXPECT_EQ(settings.drain_timeout, std::chrono::milliseconds(1500));
}

TEST(Settings, FlagsWinOverTheFileWhichWinsOverTheDefaults) {
  const ConfigFile file("http-port: 1001\ngrpc-port: 1002\n");
  const auto command =
      parse({"--grpc-port", "1003", "--config", file.path(), "--model", "somewhere"});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->settings.http.port, 1001);
  EXPECT_EQ(command->settings.grpc.port, 1003);
  EXPECT_EQ(command->settings.http.address, Settings().http.address);
}

TEST(Settings, TheLastOfAFlagGivenTwiceCounts) {
  const auto command = parse({"--model", "a", "--model", "b"});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->settings.model, "b");
}

TEST(Settings, EveryFieldReadsWhatItPrints) {
  const auto command =
      parse({"--model", "m", "--served-model-name", "n", "--kv-memory", "3MiB", "--kv",
             "leankv:alpha_high=2", "--kv-also", "snapkv,s62.5", "--kv-ladder", "s50-k4v4",
             "--api-key", "secret", "--api-key-file", "keys"});
  ASSERT_TRUE(command.ok()) << command.status();
  Settings all = command->settings;
  all.tenant_file = "tenants.yaml";  // not together with API keys, but each field can be read
  for (const SettingsField& field : settings_fields()) {
    Settings copy;
    const std::string text = field.print(all);
    ASSERT_TRUE(field.parse(copy, text).ok()) << field.name << " " << text;
    EXPECT_EQ(field.print(copy), text) << field.name;
  }
  Settings copy;
  copy.api_keys = command->settings.api_keys;  // not printed
  ASSERT_TRUE(apply_yaml(print_yaml(command->settings), "printed", copy).ok());
  EXPECT_EQ(describe(copy), describe(command->settings));
}

TEST(Settings, AnEmptyKeyIsRefusedSoThatAnUnsetVariableOpensNoServer) {
  for (const char* flag : {"--api-key", "--api-key-file", "--tenants"}) {
    const auto command = parse({"--model", "m", flag, ""});
    EXPECT_EQ(command.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(command.status().message()), testing::HasSubstr(flag));
  }
  Settings settings;
  EXPECT_FALSE(apply_yaml("api-key: ''", "file", settings).ok());
}

TEST(Settings, KeysAndValuesAreKeptByPresetFormatOrOtherNumbers) {
  const auto command = parse({"--model", "m", "--kv", "s60-k4v4", "--kv-also",
                              "s0v62.5,mustafar-70:recent=2", "--kv-ladder", "k4v8,s70-k4v4"});
  ASSERT_TRUE(command.ok()) << command.status();
  const EngineOptions& engine = command->settings.engine;
  EXPECT_EQ(engine.kv.name, "s60-k4v4");
  EXPECT_EQ(engine.kv.policy.high, (KvFormat{4, 4, 400, 400}));
  ASSERT_EQ(engine.kv_also.size(), 2u);
  EXPECT_EQ(engine.kv_also[0].policy.high, (KvFormat{16, 16, 1000, 375}));
  EXPECT_EQ(engine.kv_also[1].policy.recent, 2);
  EXPECT_THAT(*engine.kv_ladder, testing::ElementsAre(kKvK4V8, kKvS70K4V4));
}

TEST(Settings, TheFloorOfBudgetsIsAShare) {
  EXPECT_EQ(parse({"--model", "m"})->settings.engine.kv_floor, 1);
  EXPECT_EQ(parse({"--model", "m", "--kv-floor", "0.25"})->settings.engine.kv_floor, 0.25f);
  for (const char* wrong : {"0.05", "2", "half", "nan"}) {
    const auto command = parse({"--model", "m", "--kv-floor", wrong});
    EXPECT_THAT(std::string(command.status().message()),
                AllOf(HasSubstr("a number from 0.1 to 1"), HasSubstr(wrong)));
  }
}

TEST(Settings, ALadderIsFormatsOrOnePresetThatReplays) {
  const auto command =
      parse({"--model", "m", "--kv-ladder", "k4v2", "--kv-ladder", "replay-50:section=256"});
  ASSERT_TRUE(command.ok()) << command.status();
  const EngineOptions& engine = command->settings.engine;
  EXPECT_TRUE(engine.kv_ladder->empty());
  ASSERT_TRUE(engine.kv_section_step.has_value());
  EXPECT_EQ(engine.kv_section_step->name, "replay-50:section=256");
  EXPECT_EQ(engine.kv_section_step->policy.section, 256);
  for (const char* ladder : {"replay-50,k4v2", "k4v2,replay-50", "replay-50,replay-31"}) {
    EXPECT_THAT(std::string(parse({"--model", "m", "--kv-ladder", ladder}).status().message()),
                HasSubstr("has no other step beside it"))
        << ladder;
  }
}

TEST(Settings, AKvNameThatIsNoneIsRefusedWithTheList) {
  for (const char* flag : {"--kv", "--kv-also", "--kv-ladder"}) {
    const auto command = parse({"--model", "m", flag, "s101"});
    EXPECT_THAT(std::string(command.status().message()),
                AllOf(HasSubstr("'s101'"), HasSubstr("s50-k4v4"), HasSubstr("such as k8v4")))
        << flag;
  }
  EXPECT_THAT(std::string(parse({"--model", "m", "--kv-ladder", "snapkv"}).status().message()),
              HasSubstr("'snapkv' is a policy"));
}

TEST(Settings, AnEmptyTextIsPrintedWhereTheDefaultIsNot) {
  Settings settings;
  settings.http.address = "";
  Settings copy;
  ASSERT_TRUE(apply_yaml(print_yaml(settings), "printed", copy).ok());
  EXPECT_EQ(copy.http.address, "");
}

TEST(Settings, BytesTakeBinaryUnits) {
  Settings settings;
  for (const auto& [text, bytes] :
       std::vector<std::pair<std::string, int64_t>>{{"0", 0},
                                                    {"4096", 4096},
                                                    {"4096B", 4096},
                                                    {"64KiB", 65536},
                                                    {"512MiB", 536870912},
                                                    {"1TiB", int64_t{1} << 40}}) {
    ASSERT_TRUE(apply_yaml("kv-memory: " + text, "x", settings).ok()) << text;
    EXPECT_EQ(settings.engine.kv_bytes, bytes) << text;
  }
  for (const char* text : {"2GB", "-1", "1.5GiB", "MiB", "12 MiB", "9999999999TiB", "''"}) {
    EXPECT_THAT(yaml_error(std::string("kv-memory: ") + text),
                HasSubstr("server.yaml:1: kv-memory: "))
        << text;
  }
}

TEST(Settings, RefusalsNameFlagAndRange) {
  EXPECT_THAT(error_of({"--model", "m", "--http-port", "65536"}),
              AllOf(HasSubstr("--http-port"), HasSubstr("65536"), HasSubstr("0 to 65535")));
  EXPECT_THAT(error_of({"--model", "m", "--max-sequences", "-1"}),
              AllOf(HasSubstr("--max-sequences"), HasSubstr("less than 0")));
  EXPECT_THAT(error_of({"--model", "m", "--threads", "two"}),
              AllOf(HasSubstr("--threads"), HasSubstr("'two'"), HasSubstr("whole number")));
  EXPECT_THAT(error_of({"--model", "m", "--weights", "fp7"}),
              AllOf(HasSubstr("--weights"), HasSubstr("'fp7'"), HasSubstr("f32, bf16, f16, int8")));
  EXPECT_THAT(error_of({"--model", "m", "--drain-timeout", "3h"}), HasSubstr("--drain-timeout"));
  EXPECT_THAT(error_of({"--model", "m", "--no-such-flag", "1"}), HasSubstr("--no-such-flag"));
  EXPECT_THAT(error_of({"--model", "m", "stray"}), HasSubstr("stray"));
  EXPECT_THAT(error_of({"--model"}), HasSubstr("--model"));
}

TEST(Settings, RefusesWhatDoesNotFitTogether) {
  EXPECT_THAT(error_of({}), HasSubstr("--model"));
  EXPECT_THAT(error_of({"--model", "m", "--device", "cuda"}), HasSubstr("no CUDA"));
  EXPECT_EQ(parse({"--model", "m", "--device", "cuda"}).status().code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_THAT(error_of({"--model", "m", "--http-port", "9", "--grpc-port", "9"}),
              AllOf(HasSubstr("http-port"), HasSubstr("grpc-port"), HasSubstr("both 9")));
}

TEST(Settings, TlsNeedsCertificateAndKey) {
  EXPECT_THAT(error_of({"--model", "m", "--tls-cert", "c.pem"}),
              AllOf(HasSubstr("tls-cert"), HasSubstr("tls-key")));
  EXPECT_THAT(error_of({"--model", "m", "--tls-key", "k.pem"}), HasSubstr("needs both"));
  EXPECT_TRUE(parse({"--model", "m", "--tls-cert", "c.pem", "--tls-key", "k.pem"}).ok());
}

TEST(Settings, AdaptersAreRefusedByNameWhereNothingServesThem) {
  EXPECT_THAT(error_of({"--model", "m", "--lora", "sql"}), HasSubstr("lora: 'sql' is not NAME="));
  EXPECT_THAT(error_of({"--model", "m", "--lora", "a=b,a=c"}), HasSubstr("lora: 'a' stands"));
  EXPECT_THAT(error_of({"--model", "m", "--lora", "a=b", "--tensor-parallel", "2"}),
              HasSubstr("lora: several ranks serve no adapters"));
  EXPECT_THAT(error_of({"--model", "m", "--lora-memory", "1GiB", "--kv-ladder", "replay-31"}),
              HasSubstr("lora-memory: adapters cannot be combined with kv-ladder replay-31"));
}

TEST(Settings, ADraftModelIsRefusedByNameWhereNothingDrafts) {
  EXPECT_THAT(error_of({"--model", "m", "--speculation", "off", "--draft-model", "d"}),
              HasSubstr("draft-model: nothing is drafted with speculation off"));
  EXPECT_THAT(error_of({"--model", "m", "--speculation", "on", "--draft-model", "d",
                        "--tensor-parallel", "2"}),
              HasSubstr("draft-model: it serves one rank, and tensor-parallel is 2"));
  EXPECT_TRUE(parse({"--model", "m", "--speculation", "on", "--draft-model", "d"}).ok());
  EXPECT_TRUE(parse({"--model", "m", "--draft-model", "d"}).ok());
}

TEST(Settings, StoresAreRefusedByNameWhereNothingServesThem) {
  for (const char* const store : {"--kv-host-memory", "--kv-disk"}) {
    const char* const value = std::string_view(store) == "--kv-disk" ? "kv" : "1GiB";
    EXPECT_THAT(error_of({"--model", "m", store, value, "--tensor-parallel", "2"}),
                HasSubstr("kv-host-memory and kv-disk: they serve one rank"));
    EXPECT_THAT(error_of({"--model", "m", store, value, "--prefix-cache", "off"}),
                HasSubstr("kv-host-memory and kv-disk: they keep what the prefix cache evicts"));
    EXPECT_TRUE(parse({"--model", "m", store, value}).ok());
  }
}

TEST(Settings, KeysAreNeverShown) {
  const auto command = parse({"--model", "m", "--api-key", "k1,k2-secret", "--api-key-file", "f"});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->settings.api_keys, "k1,k2-secret");
  EXPECT_EQ(command->settings.api_key_file, "f");
  for (const std::string& shown : {describe(command->settings), print_yaml(command->settings)}) {
    EXPECT_THAT(shown, AllOf(HasSubstr("not shown"), ::testing::Not(HasSubstr("secret"))));
  }
}

TEST(Settings, LimitsOfTheFrontEndsReachTheirFields) {
  Settings settings;
  ASSERT_EQ(apply_yaml("cors-origin: 'https://a.example'\nmax-choices: 3\n"
                       "http-max-connections: 4\nhttp-max-header: 5KiB\nhttp-max-body: 6MiB\n"
                       "http-idle-timeout: 7s\nhttp-header-timeout: 8s\nhttp-body-timeout: 9s\n"
                       "http-write-timeout: 10s\ngrpc-max-message: 11MiB\n"
                       "grpc-keepalive-interval: 13s\n"
                       "grpc-keepalive-timeout: 14s\ngrpc-least-ping-interval: 15s\n",
                       "x", settings),
            absl::OkStatus());
  EXPECT_EQ(settings.routes.cors_origin, "https://a.example");
  EXPECT_EQ(settings.routes.max_choices, 3);
  EXPECT_EQ(settings.http.max_connections, 4u);
  EXPECT_EQ(settings.http.header_bytes, 5u << 10);
  EXPECT_EQ(settings.http.body_bytes, 6u << 20);
  EXPECT_EQ(settings.http.idle_timeout, std::chrono::seconds(7));
  EXPECT_EQ(settings.http.header_timeout, std::chrono::seconds(8));
  EXPECT_EQ(settings.http.body_timeout, std::chrono::seconds(9));
  EXPECT_EQ(settings.http.write_timeout, std::chrono::seconds(10));
  EXPECT_EQ(settings.grpc.max_message_bytes, 11 << 20);
  EXPECT_EQ(settings.grpc.keepalive_interval, std::chrono::seconds(13));
  EXPECT_EQ(settings.grpc.keepalive_timeout, std::chrono::seconds(14));
  EXPECT_EQ(settings.grpc.min_ping_interval, std::chrono::seconds(15));
  EXPECT_THAT(yaml_error("http-max-header: 255"), HasSubstr("too small"));
  EXPECT_THAT(yaml_error("http-max-body: 0"), HasSubstr("too small"));
  EXPECT_THAT(yaml_error("http-idle-timeout: 0"), HasSubstr("too small"));
  EXPECT_THAT(yaml_error("grpc-max-message: 2GiB"), HasSubstr("too large"));
}

TEST(Settings, SizesAreOpenUnlessTheyAreSet) {
  const Settings open = parse({"--model", "m"})->settings;
  EXPECT_EQ(open.context + open.max_sequences + open.max_step_tokens + open.engine.kv_bytes, 0);
  EXPECT_EQ(open.kv_populate, std::nullopt);
  EXPECT_EQ(parse({"--model", "m", "--kv-populate", "off"})->settings.kv_populate, false);
  EXPECT_EQ(parse({"--model", "m", "--kv-populate", "on"})->settings.kv_populate, true);
  EXPECT_EQ(parse({"--model", "m", "--kv-populate", "auto"})->settings.kv_populate, std::nullopt);
}

TEST(Settings, YamlErrorsNameFileLineAndKey) {
  EXPECT_EQ(yaml_error("host: h\nhttp_port: 1\n"), "server.yaml:2: unknown key 'http_port'");
  EXPECT_THAT(yaml_error("\nhttp-port: eighty\n"),
              AllOf(HasSubstr("server.yaml:2: http-port: "), HasSubstr("'eighty'")));
  EXPECT_THAT(yaml_error("http-port: [1, 2]"), HasSubstr("server.yaml:1: http-port: needs one"));
  EXPECT_THAT(yaml_error("http-port:"), HasSubstr("server.yaml:1: http-port: needs one"));
  EXPECT_THAT(yaml_error("host: a\nhost: b\n"),
              HasSubstr("server.yaml:2: host: stands here twice"));
  EXPECT_THAT(yaml_error("- a\n- b\n"), HasSubstr("server.yaml:1: must be a mapping"));
  EXPECT_THAT(yaml_error("a: b: c\n"), HasSubstr("server.yaml:1: "));
  EXPECT_THAT(yaml_error("host: [unfinished\n"), HasSubstr("server.yaml:"));
  EXPECT_THAT(yaml_error("[a]: b\n"), HasSubstr("plain name"));
  EXPECT_EQ(yaml_error(""), "");
}

TEST(Settings, ComeFromOneYamlDocument) {
  for (const char* second : {"host: a\n---\nhttp-port: 1\n", "---\nhost: a\n...\n---\nb: 1\n",
                             "---\n---\nhost: a\n", "host: a\n--- text\n"}) {
    EXPECT_THAT(yaml_error(second), AllOf(HasSubstr("server.yaml:"), HasSubstr("second YAML")))
        << second;
  }
  EXPECT_THAT(yaml_error("host: a\n---\nhttp-port: 1\n"), HasSubstr("server.yaml:3: "));
  for (const char* one : {"---\nhost: a\n", "# words\n---\nhost: a\n...\n", "host: a\n---\n# end\n",
                          "host: a\n---\n---\n"}) {
    EXPECT_EQ(yaml_error(one), "") << one;
  }
}

TEST(Settings, AMissingConfigFileIsNamed) {
  const auto command = parse({"--model", "m", "--config", "/no/such.yaml"});
  EXPECT_EQ(command.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(command.status().message()), HasSubstr("/no/such.yaml"));
}

TEST(Settings, HelpShowsEveryFieldWithItsDefault) {
  const auto command = parse({"--help"});
  ASSERT_TRUE(command.ok()) << command.status();
  ASSERT_TRUE(command->text);
  for (const SettingsField& field : settings_fields()) {
    EXPECT_THAT(*command->text, HasSubstr("--" + std::string(field.name) + " " + field.value_name));
    const std::string value = field.print(Settings());
    if (!value.empty()) {
      EXPECT_THAT(*command->text, HasSubstr(field.help + " [" + value + "]\n"));
    }
  }
}

TEST(Settings, VersionPrintsTheReleaseAndTheCommit) {
  const auto command = parse({"--version"});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_THAT(*command->text, MatchesRegex("tessera-server " TESSERA_VERSION
                                           " [(]([0-9a-f]+(-dirty)?|unknown)[)]\n"));
}

TEST(Settings, PrintConfigPrintsTheResultOfFlagsAndFile) {
  const ConfigFile file("http-port: 1001\n");
  const auto command =
      parse({"--config", file.path(), "--kv-memory", "1073741824", "--print-config"});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_THAT(*command->text, HasSubstr("\nhttp-port: 1001\n"));
  EXPECT_THAT(*command->text, HasSubstr("\nkv-memory: 1GiB\n"));
}

TEST(Configs, DefaultYamlIsWhatPrintConfigPrints) {
  const std::filesystem::path configs = std::filesystem::path(TESSERA_SOURCE_DIR) / "configs";
  EXPECT_EQ(read(configs / "default.yaml"), print_yaml(Settings()))
      << "write it anew: tessera-server --print-config > configs/default.yaml";
}

TEST(Configs, EveryFileIsAccepted) {
  const std::filesystem::path configs = std::filesystem::path(TESSERA_SOURCE_DIR) / "configs";
  for (const auto& entry : std::filesystem::directory_iterator(configs)) {
    Settings settings;
    EXPECT_EQ(apply_yaml(read(entry.path()), entry.path().string(), settings), absl::OkStatus());
  }
}

}  // namespace
}  // namespace tessera
