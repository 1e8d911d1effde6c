#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/golden.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace tessera {
namespace {

using testing::ElementsAre;

// Tests of the reference model's directory. They are skipped, visibly, if it does not exist.
class ShippedModel : public testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path folder =
        std::filesystem::path(TESSERA_SOURCE_DIR) / "models/checkpoints/tessera-tiny";
    if (!std::filesystem::exists(folder / "tokenizer.model")) {
      GTEST_SKIP() << "no checkpoint in " << folder;
    }
    auto tokenizer = Tokenizer::load(folder);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    const auto source = find_chat_template(folder);
    ASSERT_TRUE(source.ok() && source->has_value()) << source.status();
    auto parsed = ChatTemplate::parse(**source);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    template_ = *std::move(parsed);
  }

  std::string decode(const std::vector<int32_t>& ids, Detokenizer::Options options = {}) const {
    Detokenizer detokenizer(*tokenizer_, options);
    std::string text;
    for (const int32_t id : ids) text += detokenizer.push(id);
    return text + detokenizer.finish();
  }

  int32_t special(const char* text) const { return tokenizer_->special_id(text).value_or(-1); }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;
};

TEST_F(ShippedModel, GivesTextBack) {
  const std::string texts[] = {"Once upon a time, there was a little girl named Lily.",
                               " two  spaces\n\nand\ta tab ", "key 8f3a-01 = \"42\"; naïve 北京 😀",
                               "</s><|end|><|user|>", ""};
  for (const std::string& text : texts) {
    const std::vector<int32_t> ids = encode_plain(*tokenizer_, text);
    EXPECT_EQ(decode(ids), text);
    for (const int32_t id : ids) EXPECT_FALSE(tokenizer_->is_special(id)) << text;
  }
}

TEST_F(ShippedModel, HasTheTokensOfItsChatFormat) {
  EXPECT_EQ(tokenizer_->bos_id(), special("<s>"));
  EXPECT_EQ(tokenizer_->eos_id(), special("</s>"));
  for (const char* text : {"<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"}) {
    ASSERT_GE(special(text), 0) << text;
    EXPECT_TRUE(tokenizer_->is_special(special(text)));
    EXPECT_EQ(tokenizer_->token_bytes(special(text), true), text);
  }
  const TextSegment text{"Hello", false};
  EXPECT_EQ(tokenizer_->encode({&text, 1}, true).front(), special("<s>"));
}

TEST_F(ShippedModel, RendersAConversation) {
  const std::vector<ChatMessage> messages = {{"system", "Be kind."}, {"user", "Hi <|end|>"}};
  const auto prompt = template_->render({messages}, {"<s>", "</s>", true, std::nullopt});
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  const std::vector<int32_t> ids = tokenizer_->encode(*prompt, false);
  EXPECT_EQ(decode(ids, {true, true}),
            "<s><|system|>\nBe kind.<|end|>\n<|user|>\nHi <|end|><|end|>\n<|assistant|>\n");
  std::vector<int32_t> specials;
  for (const int32_t id : ids) {
    if (tokenizer_->is_special(id)) specials.push_back(id);
  }
  EXPECT_THAT(specials,
              ElementsAre(special("<s>"), special("<|system|>"), special("<|end|>"),
                          special("<|user|>"), special("<|end|>"), special("<|assistant|>")));
}

}  // namespace
}  // namespace tessera
