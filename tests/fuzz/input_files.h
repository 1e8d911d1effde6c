#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "tests/models/temporary_directory.h"

namespace tessera {

// Files for parsers that take a path or a folder. In memory if /dev/shm exists.
class InputFiles {
 public:
  InputFiles() : folder_(parent()) {}

  const std::filesystem::path& folder() const { return folder_.path(); }

  std::filesystem::path write(const std::string& name, std::string_view bytes) const {
    const std::filesystem::path path = folder_ / name;
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return path;
  }

 private:
  static std::filesystem::path parent() {
    const std::filesystem::path memory = "/dev/shm";
    return std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path();
  }

  TemporaryDirectory folder_;
};

}  // namespace tessera
