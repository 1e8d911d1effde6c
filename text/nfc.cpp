#include "text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/check.h"

namespace tessera {
namespace {

class NfcEncoder final : public PlainEncoder {
 public:
  explicit NfcEncoder(std::unique_ptr<PlainEncoder> encoder) : encoder_(std::move(encoder)) {}

  void encode(std::string_view text, bool begins_text, std::vector<int32_t>& ids) const override {
    const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
    if (std::all_of(text.begin(), text.end(), is_ascii)) {
      encoder_->encode(text, begins_text, ids);
    } else {
      encoder_->encode(to_nfc(text), begins_text, ids);
    }
  }

  bool adds_leading_space() const override { return encoder_->adds_leading_space(); }

 private:
  const std::unique_ptr<PlainEncoder> encoder_;
};

}  // namespace

std::string to_nfc(std::string_view text) {
  utf8proc_uint8_t* normal = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &normal,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  TESSERA_CHECK(size >= 0, "NFC of a text that is not UTF-8, or no memory for it");
  std::string result(reinterpret_cast<const char*>(normal), static_cast<size_t>(size));
  std::free(normal);
  return result;
}

std::unique_ptr<PlainEncoder> make_nfc_encoder(std::unique_ptr<PlainEncoder> encoder) {
  return std::make_unique<NfcEncoder>(std::move(encoder));
}

}  // namespace tessera
