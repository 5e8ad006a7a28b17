// Groups on NCCL. Every group has a separate communicator and stream, so that a small collective
// that computation waits for is not queued after a large one that it does not wait for.
#include "trainer/parallel/nccl.h"

#include <fmt/core.h>
#include <nccl.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "trainer/ops/cuda/streams.h"
#include "trainer/parallel/nccl_group.h"

namespace sortie::trainer {
namespace {

using namespace nccl;

/// Variables that decide the order of sums, or are read together with those.
constexpr std::array kSettings = {"NCCL_ALGO",           "NCCL_PROTO",    "NCCL_NVLS_ENABLE",
                                  "NCCL_COLLNET_ENABLE", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS",
                                  "NCCL_BUFFSIZE",       "NCCL_NTHREADS", "NCCL_MIN_NCHANNELS",
                                  "NCCL_MAX_NCHANNELS"};

class NcclGroups final : public DeviceGroups {
 public:
  std::string library() const override { return library_text(); }

  std::string settings() const override {
    const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
    std::string text;
    for (const char* name : kSettings)
      if (const char* value = std::getenv(name)) text += fmt::format("{}={}\n", name, value);
    // The order of sums in the switch differs from call to call (NVIDIA/nccl issue 1497).
    if (!is_set("NCCL_ALGO") && !is_set("NCCL_NVLS_ENABLE")) text += "NCCL_NVLS_ENABLE=0\n";
    return text;
  }

  void adopt_settings(const std::string& settings) override {
    for (const char* name : kSettings) {
      const std::string start = std::string(name) + "=";
      std::size_t at = settings.starts_with(start) ? 0 : settings.find("\n" + start);
      if (at == std::string::npos) {
        ::unsetenv(name);
        continue;
      }
      at += start.size() + (at > 0 ? 1 : 0);
      ::setenv(name, settings.substr(at, settings.find('\n', at) - at).c_str(), 1);
    }
  }

  std::string new_id() override {
    ncclUniqueId id;
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) fail_with(result, nullptr, "an id for a group");
    return std::string(id.internal, sizeof id.internal);
  }

  std::unique_ptr<DeviceGroup> join(Device device, const std::string& id, int rank, int size,
                                    const std::string& name, const WhileWaiting& waiting) override {
    ops::cuda::use_device(device);
    ncclUniqueId unique;
    if (id.size() != sizeof unique.internal)
      throw CommunicatorError(fmt::format("{}: an id of {} bytes for group {}, {} are expected",
                                          library_text(), id.size(), name, sizeof unique.internal));
    std::memcpy(unique.internal, id.data(), id.size());
    auto handle = std::make_unique<Handle>(name);
    ncclConfig_t config = config_of(*handle);
    try {
      const ncclResult_t begun =
          ncclCommInitRankConfig(&handle->communicator, size, unique, rank, &config);
      settle(*handle, begun, fmt::format("connecting group {}", name), waiting);
    } catch (...) {
      // NCCL's thread may still be connecting ranks; it writes to the handle at its end.
      if (handle->communicator != nullptr) (void)ncclCommAbort(handle->communicator);
      throw;
    }
    return std::make_unique<NcclGroup>(device, std::move(handle), rank, size);
  }

  // In a group call, ncclCommAbort ends kernels at once, but ncclGroupEnd frees their memory.
  void abort(std::span<DeviceGroup* const> groups) override {
    (void)ncclGroupStart();
    // Groups with an unfinished call come last: NCCL's thread may be in a CUDA call that waits for
    // kernels of the others.
    for (const bool unsettled : {false, true})
      for (DeviceGroup* group : groups)
        if (auto* one = static_cast<NcclGroup*>(group); one->unsettled() == unsettled) one->abort();
    (void)ncclGroupEnd();
  }
};

}  // namespace

std::string nccl_version() {
  int version = 0;  // 22809 = 2.28.9
  (void)ncclGetVersion(&version);
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

DeviceGroups& nccl_groups() {
  static auto* groups = new NcclGroups;  // never destroyed
  return *groups;
}

}  // namespace sortie::trainer
