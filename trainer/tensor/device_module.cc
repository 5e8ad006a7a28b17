// Loading the device module.
#include "trainer/tensor/device_module.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "common/base/check.h"
#include "trainer/tensor/device_module_build.h"

namespace sortie::trainer {
namespace {

struct Loaded {
  std::mutex mutex;
  DeviceModule* module = nullptr;
};
Loaded& loaded() {
  static Loaded one;
  return one;
}

/// Path of the module: SORTIE_CUDA_MODULE, else in the program's directory or ../lib/sortie.
std::string find_module_file() {
  if (const char* named = std::getenv("SORTIE_CUDA_MODULE")) return named;
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto folder = program.parent_path();
  for (const auto& path : {folder / kCudaModuleFile, folder / "../lib/sortie" / kCudaModuleFile})
    if (std::filesystem::exists(path, error)) return path.lexically_normal();
  return folder / kCudaModuleFile;
}

}  // namespace

std::string DeviceModule::libraries() const {
  const DeviceVersions found = versions();
  return fmt::format("CUDA {}, cuBLASLt {}, NCCL {}", found.cuda, found.cublaslt, found.nccl);
}

Result<DeviceModule*> load_cuda_module() {
  std::lock_guard lock(loaded().mutex);
  if (loaded().module != nullptr) return loaded().module;
  const std::string file = find_module_file();
  // RTLD_LOCAL: symbols of CUDA's libraries and of MPI's must not be mixed.
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return fail(ErrorCode::unsupported,
                fmt::format("{}: can not be loaded: {}; install Sortie's build with CUDA, or use "
                            "\"cpu\"",
                            file, dlerror()));
  const auto make = reinterpret_cast<MakeDeviceModule>(dlsym(handle, "sortie_device_module"));
  loaded().module = make != nullptr ? make(kDeviceModuleBuild) : nullptr;
  if (loaded().module == nullptr)
    return fail(ErrorCode::unsupported,
                fmt::format("{}: belongs to another build than this program; install both from one "
                            "build",
                            file));
  return loaded().module;
}

bool may_have_gpus() {
  if (std::getenv("SORTIE_CUDA_MODULE") != nullptr) return true;
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver != nullptr) dlclose(driver);
  return driver != nullptr;
}

DeviceModule& cuda_module() {
  std::lock_guard lock(loaded().mutex);
  SORTIE_CHECK(loaded().module != nullptr, "a CUDA device before its module was loaded");
  return *loaded().module;
}

}  // namespace sortie::trainer
