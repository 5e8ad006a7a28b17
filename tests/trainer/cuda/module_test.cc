// Tests of the real CUDA module, which is in the same folder as this program: it is loaded on hosts
// with and without GPUs.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <filesystem>

#include "trainer/tensor/device_module.h"

namespace sortie::trainer {
namespace {

TEST_CASE("libsortie-cuda.so is loaded without a GPU, and says what it lacks") {
  ::unsetenv("SORTIE_CUDA_MODULE");
  const auto module = load_cuda_module();  // every symbol is resolved here
  const std::string refused = module.has_value() ? "" : module.error().message;
  REQUIRE_MESSAGE(module.has_value(), refused);
  const std::string libraries = (*module)->libraries();
  CAPTURE(libraries);
  CHECK(libraries.starts_with("CUDA 13."));
  const auto gpus = (*module)->gpus();
  if (gpus.has_value()) {
    CHECK_FALSE(gpus->empty());
    return;
  }
  const std::string& cause = gpus.error().message;
  CAPTURE(cause);
  CHECK(gpus.error().code == ErrorCode::unsupported);
  if (!std::filesystem::exists("/proc/driver/nvidia"))
    CHECK(cause.starts_with("no NVIDIA driver is loaded"));
}

TEST_CASE("libsortie-cuda.so exports one symbol, and refuses another build's program") {
  const auto file = std::filesystem::read_symlink("/proc/self/exe").parent_path() / kCudaModuleFile;
  void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE_MESSAGE(handle != nullptr, ::dlerror());
  CHECK(::dlsym(handle, "cudaMalloc") == nullptr);
  const auto make = reinterpret_cast<MakeDeviceModule>(::dlsym(handle, "sortie_device_module"));
  REQUIRE(static_cast<bool>(make));
  CHECK(make("another build") == nullptr);
}

}  // namespace
}  // namespace sortie::trainer
