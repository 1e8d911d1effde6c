#include "bench/onednn.h"

#ifdef TESSERA_ONEDNN
#include <algorithm>
#include <dnnl.hpp>
#include <memory>
#include <unordered_map>
#include <vector>
#endif

namespace tessera::bench {

#ifdef TESSERA_ONEDNN

namespace {

using Type = dnnl::memory::data_type;
using Tag = dnnl::memory::format_tag;

struct Types {
  Type in, weight, out;
};

Types types_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
      return {Type::f32, Type::f32, Type::f32};
    case WeightFormat::bf16:
      return {Type::bf16, Type::bf16, Type::f32};
    default:
      return {Type::u8, Type::s8, Type::s32};
  }
}

class Product {
 public:
  explicit Product(const OneDnnProduct& size)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    const Types types = types_of(size.format);
    const dnnl::matmul::primitive_desc description(
        {{{size.tokens, size.inputs}, types.in, Tag::ab},
         {{size.inputs, size.outputs}, types.weight, Tag::any},
         {{size.tokens, size.outputs}, types.out, Tag::ab}},
        engine_);
    product_ = dnnl::matmul(description);
    arguments_[DNNL_ARG_SRC] = dnnl::memory(description.src_desc(), engine_);
    arguments_[DNNL_ARG_DST] = dnnl::memory(description.dst_desc(), engine_);
    for (int64_t copy = 0; copy < size.copies; ++copy) {
      weights_.emplace_back(description.weights_desc(), engine_);
      // Zeros take as long as other values. The fill gives the memory pages of its own.
      auto* bytes = static_cast<char*>(weights_.back().get_data_handle());
      std::fill(bytes, bytes + description.weights_desc().get_size(), 0);
    }
  }

  void call() {
    arguments_[DNNL_ARG_WEIGHTS] = weights_[next_];
    next_ = (next_ + 1) % weights_.size();
    product_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul product_;
  std::unordered_map<int, dnnl::memory> arguments_;
  std::vector<dnnl::memory> weights_;
  size_t next_ = 0;
};

}  // namespace

std::function<void()> onednn_product(const OneDnnProduct& size) {
  const bool serves = size.format == WeightFormat::f32 || size.format == WeightFormat::bf16 ||
                      size.format == WeightFormat::int8;
  if (!serves) {
    return {};
  }
  const auto product = std::make_shared<Product>(size);
  return [product] { product->call(); };
}

#else

std::function<void()> onednn_product(const OneDnnProduct&) {
  return {};
}

#endif

}  // namespace tessera::bench
