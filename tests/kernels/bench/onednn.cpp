#include "tests/kernels/bench/onednn.h"

#ifdef TESSERA_ONEDNN
#include <dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "tests/kernels/bench/roofline.h"
#endif

namespace tessera {

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

}  // namespace

double onednn_nanoseconds(WeightFormat format, int64_t tokens, int64_t rows, int64_t cols,
                          int64_t copies) {
  if (format == WeightFormat::int4) {
    return 0;
  }
  const Types types = types_of(format);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const dnnl::matmul::primitive_desc description({{{tokens, cols}, types.in, Tag::ab},
                                                  {{cols, rows}, types.weight, Tag::any},
                                                  {{tokens, rows}, types.out, Tag::ab}},
                                                 engine);
  const dnnl::matmul product(description);
  dnnl::memory in(description.src_desc(), engine);
  dnnl::memory out(description.dst_desc(), engine);
  std::vector<dnnl::memory> weights;
  for (int64_t copy = 0; copy < copies; ++copy) {
    weights.emplace_back(description.weights_desc(), engine);
    // zeros time like anything else, but must be the memory's own pages
    auto* bytes = static_cast<char*>(weights.back().get_data_handle());
    std::fill(bytes, bytes + description.weights_desc().get_size(), 0);
  }
  std::unordered_map<int, dnnl::memory> arguments{{DNNL_ARG_SRC, in}, {DNNL_ARG_DST, out}};
  return time_of([&](int64_t i) {
           arguments[DNNL_ARG_WEIGHTS] = weights[static_cast<size_t>(i % copies)];
           product.execute(stream, arguments);
           stream.wait();
         })
      .median;
}

#else

double onednn_nanoseconds(WeightFormat, int64_t, int64_t, int64_t, int64_t) {
  return 0;
}

#endif

}  // namespace tessera
