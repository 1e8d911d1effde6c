#include "files/gguf/gguf_file.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/gguf/tensor_types.h"
#include "files/json_fields.h"

namespace tessera {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kMaxDimensions = 4;
constexpr size_t kMaxNameBytes = 65535;
constexpr uint64_t kDefaultAlignment = 32;

// A tensor of the table; its bytes are not checked yet.
struct Entry {
  std::string name;
  StoredTensor tensor;
  uint64_t offset = 0;  // from the begin of the data
};

absl::Status in_front(const std::string& what, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
}

absl::Status truncated(const std::string& where) {
  return absl::InvalidArgumentError(absl::StrCat("ends within ", where, ": truncated or damaged"));
}

absl::Status check_version(uint32_t version) {
  if (version == 2 || version == 3) return absl::OkStatus();
  if (version != 0 && __builtin_bswap32(version) <= 3) {
    return absl::UnimplementedError("is a big-endian GGUF file; supported are little-endian ones");
  }
  return absl::UnimplementedError(
      absl::StrCat("is GGUF of version ", version, "; supported are versions 2 and 3"));
}

// Reads a key or a tensor's name. `what` is "key" or "tensor".
absl::StatusOr<std::string> read_name(ByteReader& reader, const char* what) {
  const std::string_view name = reader.text();
  if (!reader.ok()) return truncated(absl::StrCat("the name of a ", what));
  if (name.empty() || name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the name of a ", what, " has ", name.size(),
                                                   " bytes, expected 1 to ", kMaxNameBytes));
  }
  return std::string(name);
}

// Returns: the bytes of a tensor. Errors: rows are no whole blocks, or the product overflows.
absl::StatusOr<int64_t> byte_size(const StoredTensor& tensor) {
  const int64_t values = block_values(tensor.type);
  if (tensor.shape.back() % values != 0) {
    return absl::InvalidArgumentError(absl::StrCat("its rows of ", tensor.shape.back(),
                                                   " values are no whole blocks of ", values, " (",
                                                   std::string(name(tensor.type)), ")"));
  }
  int64_t bytes = block_bytes(tensor.type);
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    const int64_t extent = tensor.shape[i];
    const int64_t blocks = i + 1 == tensor.shape.size() ? extent / values : extent;
    if (extent < 0 || __builtin_mul_overflow(bytes, blocks, &bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape: ", shown(tensor.shape), " is too large"));
    }
  }
  return bytes;
}

absl::Status read_entry(ByteReader& reader, Entry& entry) {
  const auto dimensions = reader.read<uint32_t>();
  if (!reader.ok()) return truncated("the table of tensors");
  if (dimensions < 1 || dimensions > kMaxDimensions) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", dimensions, " dimensions, expected 1 to ", kMaxDimensions));
  }
  for (uint32_t i = 0; i < dimensions; ++i) {  // the file has the extent of a row first
    entry.tensor.shape.insert(entry.tensor.shape.begin(),
                              static_cast<int64_t>(reader.read<uint64_t>()));
  }
  const auto type = reader.read<uint32_t>();
  entry.offset = reader.read<uint64_t>();
  if (!reader.ok()) return truncated("the table of tensors");
  TESSERA_ASSIGN_OR_RETURN(entry.tensor.type, gguf_tensor_type(type));
  return absl::OkStatus();
}

// Sets the view of the tensor's bytes.
absl::Status find_bytes(std::span<const std::byte> data, uint64_t alignment, Entry& entry) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t bytes, byte_size(entry.tensor));
  if (entry.offset % alignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("its offset ", entry.offset, " is no multiple of the alignment ", alignment));
  }
  if (entry.offset > data.size() || static_cast<uint64_t>(bytes) > data.size() - entry.offset) {
    return absl::InvalidArgumentError(absl::StrCat("has ", bytes, " bytes from offset ",
                                                   entry.offset, ", but the file has ", data.size(),
                                                   " bytes of data: truncated or damaged"));
  }
  entry.tensor.bytes = data.subspan(static_cast<size_t>(entry.offset), static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status check_no_overlap(const std::vector<Entry>& entries) {
  std::vector<const Entry*> sorted;
  for (const Entry& entry : entries) {
    if (!entry.tensor.bytes.empty()) sorted.push_back(&entry);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const Entry* a, const Entry* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i - 1]->offset + sorted[i - 1]->tensor.bytes.size() > sorted[i]->offset) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", in_quotes(sorted[i]->name),
                                                     " overlaps tensor ",
                                                     in_quotes(sorted[i - 1]->name)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GgufFile> GgufFile::open(const std::filesystem::path& path) {
  TESSERA_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::open(path));
  GgufFile file(path, std::move(mapped));
  if (absl::Status parsed = file.parse(); !parsed.ok()) return in_front(path.string(), parsed);
  return file;
}

absl::Status GgufFile::parse() {
  ByteReader reader(file_.bytes());
  const std::span<const std::byte> magic = reader.take(kMagic.size());
  if (!std::equal(magic.begin(), magic.end(), kMagic.begin(), kMagic.end(),
                  [](std::byte a, char b) { return static_cast<char>(a) == b; })) {
    return absl::InvalidArgumentError(
        "is no GGUF file; a model is a Hugging Face directory or a GGUF file");
  }
  TESSERA_RETURN_IF_ERROR(check_version(reader.read<uint32_t>()));
  const auto tensors = reader.read<uint64_t>();
  const auto keys = reader.read<uint64_t>();
  if (!reader.ok()) return truncated("the header");
  if (tensors > kMaxTensors || keys > kMaxKeys) {
    return absl::InvalidArgumentError(absl::StrCat("announces ", tensors, " tensors and ", keys,
                                                   " keys, expected at most ", kMaxTensors, " and ",
                                                   kMaxKeys));
  }
  TESSERA_RETURN_IF_ERROR(parse_metadata(reader, keys));
  return parse_tensors(reader, tensors);
}

absl::Status GgufFile::parse_metadata(ByteReader& reader, uint64_t keys) {
  for (uint64_t i = 0; i < keys; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const std::string key, read_name(reader, "key"));
    const absl::StatusOr<GgufValue> value = GgufValue::read(reader);
    if (!value.ok()) return in_front(absl::StrCat("key ", in_quotes(key)), value.status());
    if (!metadata_.emplace(key, *value).second) {
      return absl::InvalidArgumentError(absl::StrCat("key ", in_quotes(key), " is there twice"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> GgufFile::alignment() const {
  const auto found = metadata_.find("general.alignment");
  if (found == metadata_.end()) return kDefaultAlignment;
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json value, found->second.to_json());
  const uint64_t number = value.is_number_unsigned() ? value.get<uint64_t>() : 0;
  if (!std::has_single_bit(number) || number > (uint64_t{1} << 20)) {
    return absl::InvalidArgumentError("key \"general.alignment\": is no power of two up to 2^20");
  }
  return number;
}

absl::Status GgufFile::parse_tensors(ByteReader& reader, uint64_t tensors) {
  std::vector<Entry> entries;
  for (uint64_t i = 0; i < tensors; ++i) {
    Entry& entry = entries.emplace_back();
    TESSERA_ASSIGN_OR_RETURN(entry.name, read_name(reader, "tensor"));
    const absl::Status read = read_entry(reader, entry);
    if (!read.ok()) return in_front(absl::StrCat("tensor ", in_quotes(entry.name)), read);
  }
  TESSERA_ASSIGN_OR_RETURN(const uint64_t align, alignment());
  reader.take((align - reader.position() % align) % align);  // a file without data may end here
  const std::span<const std::byte> data = reader.take(reader.left());
  for (Entry& entry : entries) {
    const absl::Status found = find_bytes(data, align, entry);
    if (!found.ok()) return in_front(absl::StrCat("tensor ", in_quotes(entry.name)), found);
  }
  TESSERA_RETURN_IF_ERROR(check_no_overlap(entries));
  for (const Entry& entry : entries) {
    if (!tensors_.emplace(entry.name, entry.tensor).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", in_quotes(entry.name), " is there twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
