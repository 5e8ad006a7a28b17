#include "runner/health/gpu_watch.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <thread>

namespace sortie::runner::health {
namespace {

using std::chrono::milliseconds;

constexpr unsigned kMostGpus = 256;
/// Pause after an error other than a timeout, which could otherwise repeat in a tight loop.
constexpr milliseconds kErrorPause{1000};

std::int64_t steady_ms() {
  return static_cast<std::int64_t>(steady_seconds() * 1000);
}

}  // namespace

GpuWatch::GpuWatch(std::string library, milliseconds tick, Inbox& inbox)
    : library_(std::move(library)), tick_(tick), inbox_(inbox) {
  std::thread([this] { run(); }).detach();
}

std::string GpuWatch::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void GpuWatch::set_state(std::string text) {
  const std::lock_guard lock(mutex_);
  state_ = std::move(text);
}

void GpuWatch::expect_answer(double ms) {
  waiting_since_ms_ = steady_ms() + static_cast<std::int64_t>(ms);
}

std::optional<Finding> GpuWatch::silence(double now) {
  const std::int64_t since = waiting_since_ms_;
  const double waited = since == 0 ? 0 : now - static_cast<double>(since) / 1000;
  if (waited < kSilentSeconds) {
    silence_told_ = false;
    return std::nullopt;
  }
  if (std::exchange(silence_told_, true)) return std::nullopt;
  Finding finding{.kind = Kind::driver_silent, .source = "nvml"};
  finding.value = waited;
  return finding;
}

void GpuWatch::run() {
  if (!begin()) {
    answered();
    return;
  }
  auto next = std::chrono::steady_clock::now();
  for (unsigned ticks = 0;;) {
    if (std::chrono::steady_clock::now() >= next) {
      look_at_all(ticks++ % kSlowTicks == 0);
      next = std::chrono::steady_clock::now() + tick_;
    }
    answered();
    wait_for_event();
  }
}

bool GpuWatch::begin() {
  auto loaded = Nvml::load(library_);
  if (!loaded) {
    set_state("no NVML: " + loaded.error().message);
    return false;
  }
  nvml_ = *loaded;
  expect_answer();
  unsigned count = 0;
  if (const int error = nvml_.init(); error != kNvmlSuccess) {
    set_state("no NVML: " + nvml_.text(error));
    return false;
  }
  if (const int error = nvml_.count(&count); error != kNvmlSuccess) {
    set_state("no NVML: " + nvml_.text(error));
    return false;
  }
  find_gpus(std::min(count, kMostGpus));
  std::array<char, 96> version{};
  if (!nvml_.driver_version ||
      nvml_.driver_version(version.data(), version.size() - 1) != kNvmlSuccess)
    version[0] = '?';
  set_state(
      fmt::format("NVML {}: {} GPUs{}", version.data(), count, events_ ? "" : ", without events"));
  return count > 0;
}

void GpuWatch::find_gpus(unsigned count) {
  if (!nvml_.event_set || !nvml_.register_events || !nvml_.wait ||
      nvml_.event_set(&events_) != kNvmlSuccess)
    events_ = nullptr;
  for (unsigned number = 0; number < count; ++number) {
    Gpu gpu;
    gpu.number = number;
    const int error = nvml_.device(number, &gpu.device);
    if (error != kNvmlSuccess) {
      if (error != kNvmlGpuIsLost) continue;
      Finding finding{.kind = Kind::gpu_lost, .source = "nvml"};
      finding.text = nvml_.text(error);
      put(std::move(finding), gpu);
      continue;
    }
    NvmlPci pci{};
    if (nvml_.pci(gpu.device, &pci) == kNvmlSuccess) {
      pci.bus_id[sizeof pci.bus_id - 1] = '\0';
      gpu.pci = sortie::health::pci_address(pci.bus_id);
    }
    std::array<char, 97> uuid{};
    if (nvml_.uuid(gpu.device, uuid.data(), 96) == kNvmlSuccess) gpu.uuid = uuid.data();
    if (!gpu.pci.empty()) inbox_.name_gpu(gpu.pci, static_cast<int>(number), gpu.uuid);
    unsigned long long wanted = kNvmlEventXid | kNvmlEventDoubleBit, supported = wanted;
    if (nvml_.supported_events && nvml_.supported_events(gpu.device, &supported) == kNvmlSuccess)
      wanted &= supported;
    if (events_ && wanted != 0) nvml_.register_events(gpu.device, wanted, events_);
    gpus_.push_back(std::move(gpu));
  }
}

void GpuWatch::wait_for_event() {
  if (!events_) return std::this_thread::sleep_for(tick_);
  NvmlEvent event{};
  expect_answer(static_cast<double>(tick_.count()));
  const int error = nvml_.wait(events_, &event, static_cast<unsigned>(tick_.count()));
  answered();
  if (error == kNvmlTimeout) return;
  if (error != kNvmlSuccess) return std::this_thread::sleep_for(std::min(kErrorPause, tick_));
  const auto gpu = std::ranges::find(gpus_, event.device, &Gpu::device);
  if (gpu == gpus_.end()) return;
  expect_answer();
  if (event.type & kNvmlEventXid) {
    // In NVML, an event without a number belongs to the driver's last error.
    if (event.data == 0 || event.data > 1'000'000) return;
    Finding finding{.kind = Kind::xid, .code = static_cast<int>(event.data), .source = "nvml"};
    finding.recovery = recovery_of(*gpu);
    put(std::move(finding), *gpu);
  } else if (event.type & kNvmlEventDoubleBit) {
    Finding finding{.kind = Kind::ecc, .source = "nvml"};
    finding.value = 1;
    put(std::move(finding), *gpu);
  }
}

void GpuWatch::look_at_all(bool slow) {
  for (Gpu& gpu : gpus_) {
    expect_answer();
    for (Finding& finding : gpu.state.look(sample(gpu, slow), steady_seconds()))
      put(std::move(finding), gpu);
  }
}

std::optional<int> GpuWatch::recovery_of(const Gpu& gpu) {
  if (!nvml_.fields) return std::nullopt;
  NvmlField field{};
  field.id = kNvmlFieldRecoveryAction;
  const int error = nvml_.fields(gpu.device, 1, &field);
  if (error != kNvmlSuccess || field.result != kNvmlSuccess ||
      field.value.number > static_cast<unsigned>(sortie::health::kRecoverySystemReboot))
    return std::nullopt;
  return static_cast<int>(field.value.number);
}

GpuSample GpuWatch::sample(const Gpu& gpu, bool slow) {
  GpuSample taken;
  const auto known = [&taken](int error) {
    if (error == kNvmlGpuIsLost) taken.lost = true;
    return error == kNvmlSuccess;
  };
  taken.recovery = recovery_of(gpu);
  unsigned long long bits = 0;
  if (nvml_.throttle && known(nvml_.throttle(gpu.device, &bits))) taken.throttle = bits;
  // Check whether the GPU still exists, with the calls that every tool makes.
  NvmlPci pci{};
  known(nvml_.pci(gpu.device, &pci));
  NvmlDevice device = nullptr;
  known(nvml_.device(gpu.number, &device));
  if (!slow || taken.lost) return taken;
  constexpr int kCorrected = 0, kUncorrected = 1, kSinceDriverLoad = 0;
  unsigned long long errors = 0;
  if (nvml_.ecc && known(nvml_.ecc(gpu.device, kUncorrected, kSinceDriverLoad, &errors)))
    taken.uncorrected = errors;
  if (nvml_.ecc && known(nvml_.ecc(gpu.device, kCorrected, kSinceDriverLoad, &errors)))
    taken.corrected = errors;
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  if (nvml_.remapped &&
      known(nvml_.remapped(gpu.device, &corrected, &uncorrected, &pending, &failed))) {
    taken.remap_pending = pending != 0;
    taken.remap_failed = failed != 0;
  }
  if (!nvml_.link) return taken;
  for (unsigned link = 0; link < kNvmlMaxLinks; ++link) {
    int active = 0;
    if (!known(nvml_.link(gpu.device, link, &active))) continue;
    taken.links = taken.links.value_or(0) | (active != 0 ? 1u << link : 0);
  }
  return taken;
}

void GpuWatch::put(Finding finding, const Gpu& gpu) {
  finding.device = gpu.pci;
  finding.gpu = static_cast<int>(gpu.number);
  finding.uuid = gpu.uuid;
  inbox_.put(std::move(finding));
}

}  // namespace sortie::runner::health
