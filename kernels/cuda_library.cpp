#include "kernels/cuda_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

namespace tessera {
namespace {

constexpr const char* kFile = "libtessera_cuda.so";

std::filesystem::path folder_of_program() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::path() : program.parent_path();
}

}  // namespace

CudaLibrary open_cuda_library() {
  CudaLibrary library;
  const std::filesystem::path path = folder_of_program() / kFile;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    library.error = "this build has no CUDA backend: there is no " + path.string() +
                    " (it is built by the cmake preset `cuda`)";
    return library;
  }
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    library.error = std::string("the CUDA backend does not load: ") + dlerror();
    return library;
  }
  auto* open = reinterpret_cast<OpenCuda*>(dlsym(handle, kCudaEntry));
  if (open == nullptr) {
    library.error = path.string() + " is no CUDA backend of Tessera";
    return library;
  }
  open(kCudaAbi, library);
  return library;
}

std::string missing_ops(const Backend& backend) {
  std::string missing;
  const auto look = [&missing](const char* name, bool there) {
    if (!there) {
      missing += (missing.empty() ? "" : ", ") + std::string(name);
    }
  };
  look("linear", backend.linear != nullptr && backend.pack_weight != nullptr);
  look("embed", backend.embed != nullptr);
  look("rms_norm", backend.rms_norm != nullptr);
  look("rope", backend.rope != nullptr);
  look("silu_mul", backend.silu_mul != nullptr);
  look("kv_resize", backend.kv_resize != nullptr);
  look("kv_fork", backend.kv_fork != nullptr);
  look("kv_swap_out", backend.kv_swap_out != nullptr);
  look("kv_swap_in", backend.kv_swap_in != nullptr);
  look("kv_share", backend.kv_share != nullptr);
  look("kv_attach", backend.kv_attach != nullptr);
  look("kv_own", backend.kv_own != nullptr);
  look("kv_evict", backend.kv_evict != nullptr);
  look("kv_demote", backend.kv_demote != nullptr);
  look("kv_store", backend.kv_store != nullptr);
  look("attention", backend.attention != nullptr);
  look("kv_score", backend.kv_score != nullptr);
  look("kv_compress", backend.kv_compress != nullptr);
  look("sample", backend.sample != nullptr);
  return missing;
}

}  // namespace tessera
