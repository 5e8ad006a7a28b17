// The thread that talks to NVML: it waits for XIDs and looks at counters. A thread of its own,
// since a sick driver may keep it waiting for ever; the main thread then says so.
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
  /// Seconds without an answer after which the driver counts as silent.
  static constexpr double kSilentSeconds = 60;
  /// ECC, remapped rows and links are looked at in each such tick only.
  static constexpr unsigned kSlowTicks = 6;

  /// Starts the thread, which ends with the process. `tick`: how often counters are looked at.
  /// `inbox` must live as long as the process.
  GpuWatch(std::string library, std::chrono::milliseconds tick, Inbox& inbox);

  /// What it has come to: "NVML 550.54: 8 GPUs", "no NVML: ...". Empty while it has not answered.
  std::string state() const;
  /// A finding when NVML has kept the thread waiting for too long; once, until it answers again.
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
  /// NVML is about to be asked, and will answer within `ms` if it is well.
  void expect_answer(double ms = 0);
  void answered() { waiting_since_ms_ = 0; }

  const std::string library_;
  const std::chrono::milliseconds tick_;
  Inbox& inbox_;
  Nvml nvml_;
  NvmlEventSet events_ = nullptr;
  std::vector<Gpu> gpus_;
  std::atomic<std::int64_t> waiting_since_ms_ = 0;  // 0 = it is not waiting
  bool silence_told_ = false;
  mutable std::mutex mutex_;
  std::string state_;
};

}  // namespace sortie::runner::health
