// The thread that calls NVML: it waits for XIDs and samples counters. It is a separate thread
// because a faulty driver may block it forever; the main thread reports that.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/health/finding.h"
#include "runner/health/gpu_state.h"
#include "runner/health/inbox.h"
#include "runner/health/nvml.h"

namespace sortie::runner::health {

class GpuWatch {
 public:
  /// Seconds without an answer after which the driver is reported as silent.
  static constexpr double kSilentSeconds = 60;
  /// ECC errors, remapped rows and links are sampled once in this many ticks.
  static constexpr unsigned kSlowTicks = 6;

  /// Starts the thread, which ends with the process. `tick`: sampling interval of the counters.
  /// `inbox` and this object must live as long as the process.
  GpuWatch(std::string library, std::chrono::milliseconds tick, Inbox& inbox);

  /// Result of the initialization: "NVML 550.54: 8 GPUs", "no NVML: ...". Empty until NVML answers.
  std::string state() const;
  /// Returns a finding if NVML has blocked the thread for too long; once, until it answers again.
  std::optional<Finding> silence(double now);

 private:
  struct Gpu {
    unsigned number = 0;
    NvmlDevice device = nullptr;
    std::string pci, uuid;
    GpuState state;
  };

  void run();
  bool begin();
  void find_gpus(unsigned count);
  void wait_for_event();
  void look_at_all(bool slow);
  GpuSample sample(const Gpu& gpu, bool slow);
  std::optional<int> recovery_of(const Gpu& gpu);
  void put(Finding finding, const Gpu& gpu);
  void set_state(std::string text);
  /// Call before NVML is called. A healthy NVML answers within `ms`.
  void expect_answer(double ms = 0);
  void answered() { waiting_since_ms_ = 0; }

  const std::string library_;
  const std::chrono::milliseconds tick_;
  Inbox& inbox_;
  Nvml nvml_;
  NvmlEventSet events_ = nullptr;
  std::vector<Gpu> gpus_;
  std::atomic<std::int64_t> waiting_since_ms_ = 0;  // 0 = no call is pending
  bool silence_told_ = false;
  mutable std::mutex mutex_;
  std::string state_;
};

}  // namespace sortie::runner::health
