#include "models/lora/adapter.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "models/lora/lora_plan.h"

namespace tessera {
namespace {

using Numbers = std::vector<float>;

bool are_finite(const Numbers& numbers) {
  return std::ranges::all_of(numbers, [](float value) { return std::isfinite(value); });
}

// Packs the matrices of planned products.
class Packer {
 public:
  Packer(const LoraFile& file, const Backend& backend) : file_(file), backend_(backend) {}

  absl::Status pack(const PlannedLoraProduct& planned, const LowRankProduct& product) {
    Numbers all(static_cast<size_t>(planned.ranks * planned.inputs));
    for (size_t i = 0; i < planned.parts.size(); ++i) {
      const PlannedLoraPart& part = planned.parts[i];
      TESSERA_RETURN_IF_ERROR(read_a(part, planned.inputs, all));
      TESSERA_RETURN_IF_ERROR(pack_b(part, product.parts[i].up));
    }
    pack_numbers(all, product.down);
    return absl::OkStatus();
  }

 private:
  // Returns: the numbers of a whole matrix.
  // Errors: a number that is not finite.
  absl::StatusOr<Numbers> read(const StoredTensor& tensor, const std::string& name) const {
    Numbers numbers(static_cast<size_t>(tensor.shape[0] * tensor.shape[1]));
    read_f32(tensor, 0, numbers);
    if (are_finite(numbers)) return numbers;
    return absl::InvalidArgumentError(
        absl::StrCat(file_.describe(name), ": holds a value that is not finite"));
  }

  absl::Status read_a(const PlannedLoraPart& part, int64_t inputs, Numbers& all) const {
    const StoredTensor& a = *part.pair->a;
    TESSERA_ASSIGN_OR_RETURN(const Numbers numbers, read(a, part.tensor.name));
    for (int64_t row = 0; row < a.shape[0]; ++row) {
      const auto from = numbers.begin() + row * a.shape[1] + part.tensor.stored_col;
      std::copy_n(from, inputs, all.begin() + (part.first_rank + row) * inputs);
    }
    return absl::OkStatus();
  }

  absl::Status pack_b(const PlannedLoraPart& part, const LowRankMatrix& up) const {
    TESSERA_ASSIGN_OR_RETURN(Numbers numbers, read(*part.pair->b, part.tensor.name));
    const auto first = numbers.begin() + part.tensor.stored_row * up.cols;
    Numbers own(first, first + up.rows * up.cols);
    for (float& value : own) value *= part.pair->scale;
    pack_numbers(own, up);
    return absl::OkStatus();
  }

  void pack_numbers(const Numbers& numbers, const LowRankMatrix& matrix) const {
    backend_.pack_low_rank({numbers.data(), matrix.rows, matrix.cols, matrix.cols}, matrix);
  }

  const LoraFile& file_;
  const Backend& backend_;
};

// Returns: the digest of everything that decides the adapter's numbers.
std::string fingerprint_of(const LoraFile& file) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> digest(EVP_MD_CTX_new(),
                                                                       EVP_MD_CTX_free);
  TESSERA_CHECK(digest != nullptr && EVP_DigestInit_ex(digest.get(), EVP_sha256(), nullptr) == 1,
                "OpenSSL has no SHA-256");
  const auto add = [&](const void* data, size_t bytes) {
    EVP_DigestUpdate(digest.get(), data, bytes);
  };
  for (const auto& [name, pair] : file.pairs()) {
    const std::string head =
        absl::StrCat(name, " ", static_cast<int>(pair.a->type), " ", shown(pair.a->shape), " ",
                     static_cast<int>(pair.b->type), " ", shown(pair.b->shape), "\n");
    add(head.data(), head.size());
    add(&pair.scale, sizeof(pair.scale));
    add(pair.a->bytes.data(), pair.a->bytes.size());
    add(pair.b->bytes.data(), pair.b->bytes.size());
  }
  std::string made(static_cast<size_t>(EVP_MD_size(EVP_sha256())), '\0');
  EVP_DigestFinal_ex(digest.get(), reinterpret_cast<unsigned char*>(made.data()), nullptr);
  return made;
}

}  // namespace

absl::StatusOr<int64_t> LoraAdapter::measure(const std::filesystem::path& path,
                                             const LoraBase& base) {
  TESSERA_ASSIGN_OR_RETURN(const LoraFile file, LoraFile::open(path, base.whole));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<PlannedLoraProduct> plan, plan_lora(file, base));
  std::vector<LoraLayer> layers(base.weights.layers.size());
  return place_lora(plan, base.backend, nullptr, layers);
}

absl::StatusOr<std::shared_ptr<const LoraAdapter>> LoraAdapter::load(
    const std::filesystem::path& path, const LoraBase& base) {
  TESSERA_ASSIGN_OR_RETURN(const LoraFile file, LoraFile::open(path, base.whole));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<PlannedLoraProduct> plan, plan_lora(file, base));
  const std::shared_ptr<LoraAdapter> adapter(new LoraAdapter);
  adapter->layers_.resize(base.weights.layers.size());
  const int64_t bytes = place_lora(plan, base.backend, nullptr, adapter->layers_);
  TESSERA_ASSIGN_OR_RETURN(adapter->memory_, AlignedMemory::allocate(bytes, base.backend));
  place_lora(plan, base.backend, adapter->memory_.data(), adapter->layers_);
  Packer packer(file, base.backend);
  for (const PlannedLoraProduct& planned : plan) {
    TESSERA_RETURN_IF_ERROR(packer.pack(
        planned, adapter->layers_[static_cast<size_t>(planned.layer)].*planned.product));
  }
  adapter->fingerprint_ = fingerprint_of(file);
  return adapter;
}

}  // namespace tessera
