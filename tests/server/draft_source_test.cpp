// The model of --draft-model at a start, with the shipped model as both.

#include "server/start/draft_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "models/checkpoint/read_model_config.h"
#include "tests/server/fake_engine.h"

namespace tessera {
namespace {

using testing::HasSubstr;

const std::filesystem::path kShipped =
    std::filesystem::path(TESSERA_SOURCE_DIR) / "models/checkpoints/tessera-tiny";

absl::StatusOr<std::optional<DraftSource>> open(const std::filesystem::path& path) {
  Settings settings;
  settings.model = kShipped;
  settings.draft_model = path;
  return DraftSource::open(settings, cpu_backend(best_cpu_isa()));
}

TEST(DraftSource, IsNoneWithoutTheSetting) {
  const auto source = open("");
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_FALSE(source->has_value());
}

TEST(DraftSource, HasTheVocabularyOfTheServedModel) {
  const auto source = open(kShipped);
  ASSERT_TRUE(source.ok()) << source.status();
  const auto served = Tokenizer::load(kShipped);
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_TRUE((*source)->check_vocabulary(**served).ok());
}

TEST(DraftSource, IsRefusedByNameForAnotherVocabulary) {
  const auto source = open(kShipped);
  ASSERT_TRUE(source.ok()) << source.status();
  const absl::Status status = (*source)->check_vocabulary(FakeTokenizer());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("draft-model: "), HasSubstr("tessera-tiny has another vocabulary"),
                    HasSubstr("and 258 tokens")));
}

TEST(DraftSource, IsRefusedByNameIfItDoesNotExist) {
  const auto source = open("/nowhere");
  ASSERT_FALSE(source.ok());
  EXPECT_THAT(std::string(source.status().message()), HasSubstr("draft-model: "));
}

TEST(DraftSource, IsCountedAmongTheBytesOfAStart) {
  const Backend& backend = cpu_backend(best_cpu_isa());
  const auto source = open(kShipped);
  ASSERT_TRUE(source.ok()) << source.status();
  const auto config = read_model_config(kShipped);
  ASSERT_TRUE(config.ok()) << config.status();
  ThreadPool threads(1);
  StartModel model{*config, 0, backend, threads.stream()};
  EngineOptions options;
  options.context = 256;
  const auto without = start_bytes(options, model);
  ASSERT_TRUE(without.ok()) << without.status();
  (*source)->add_to(model);
  const auto with = start_bytes(options, model);
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_EQ(without->draft, 0);
  EXPECT_GT(with->draft, model.draft_weight_bytes);
  EXPECT_EQ(with->model() - without->model(), with->draft);
}

}  // namespace
}  // namespace tessera
