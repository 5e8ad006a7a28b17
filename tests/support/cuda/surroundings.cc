#include "tests/support/cuda/surroundings.h"

#include <cstdlib>
#include <string>

#include "tests/support/cuda/streams.h"

namespace emulated_cuda {
namespace {

std::string variable_of(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? text : "";
}

}  // namespace

int driver_version() {
  const std::string text = variable_of("SORTIE_EMULATED_DRIVER");
  return text.empty() ? kRuntimeVersion : std::atoi(text.c_str());
}

cudaError_t refused(int index) {
  const std::string taken = "," + variable_of("SORTIE_EMULATED_GPUS_TAKEN") + ",";
  if (taken.find("," + std::to_string(index) + ",") != taken.npos)
    return cudaErrorDevicesUnavailable;
  return used_by_others() >= device(index).memory.bytes() ? cudaErrorMemoryAllocation : cudaSuccess;
}

std::size_t used_by_others() {
  return std::strtoull(variable_of("SORTIE_EMULATED_GPU_USED").c_str(), nullptr, 10);
}

}  // namespace emulated_cuda
