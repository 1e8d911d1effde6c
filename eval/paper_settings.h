#pragma once

#include <span>
#include <string_view>

namespace tessera {

// The numbers of a paper, beside our presets, whose numbers may be others. `--kv papers` stands for
// all of them.
struct PaperSetting {
  std::string_view name;     // "leankv@paper"
  std::string_view policy;   // as --kv takes it
  std::string_view source;   // paper and place
  std::string_view differs;  // differences from the paper that remain
};

std::span<const PaperSetting> paper_settings();

}  // namespace tessera
