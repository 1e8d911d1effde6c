// Input: the bytes of a streamed answer. The first byte says after how many bytes it is cut.
#include "base/check.h"
#include "load/client/openai.h"
#include "tests/fuzz/fuzz_target.h"

namespace tessera::load {
namespace {

class Counted final : public GenerationEvents {
 public:
  void sent() override {}
  void received(std::string_view text) override {
    TESSERA_CHECK(!text.empty(), "an event without text");
    bytes_ += text.size();
  }
  void ended(const GenerationEnd& end, const Answer& answer) override {
    TESSERA_CHECK(++ends_ == 1, "an answer ends once");
    TESSERA_CHECK(answer.text.size() == bytes_, "the text is not that of the events");
    (void)end;
  }

 private:
  size_t bytes_ = 0;
  int ends_ = 0;
};

void read(std::string_view bytes, size_t piece) {
  const auto reader = make_openai_reader(std::make_shared<Counted>());
  reader->head({.status = 200, .retry_after = "", .event_stream = true});
  for (size_t at = 0; at < bytes.size(); at += piece) {
    reader->body(bytes.substr(at, piece));
  }
  reader->ended(CallEnd::complete, "");
}

}  // namespace
}  // namespace tessera::load

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) {
    tessera::load::read(tessera::text_of(data + 1, size - 1), size_t{data[0]} + 1);
  }
  return 0;
}
