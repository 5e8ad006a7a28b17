#include "tests/support/cuda/streams.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "common/base/check.h"
#include "tests/support/cuda/faults.h"

namespace emulated_cuda {
namespace {

constexpr int kDevices = 16;

std::uint64_t number_of(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// The number of a fault of this kind: EMULATED_GPU_FAULT = "slow:RANK:MICROSECONDS" or
/// "hang:RANK:KERNELS". Without RANK in the environment the number of the GPU counts.
std::uint64_t fault_of(std::string_view wanted, int gpu, std::uint64_t otherwise) {
  const char* text = std::getenv("EMULATED_GPU_FAULT");
  if (text == nullptr) return otherwise;
  char kind[8] = "";
  unsigned long long place = 0, number = 0;
  SORTIE_CHECK(std::sscanf(text, "%7[a-z]:%llu:%llu", kind, &place, &number) == 3 &&
                   (kind == std::string_view("slow") || kind == std::string_view("hang")),
               "EMULATED_GPU_FAULT is \"{}\"", text);
  const bool here = place == number_of("RANK", static_cast<std::uint64_t>(gpu));
  return here && kind == wanted ? number : otherwise;
}

/// Opens a GPU's memory while the object lives.
class Open {
 public:
  explicit Open(Memory& memory) : memory_(memory) { memory_.open(); }
  ~Open() { memory_.close(); }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;

 private:
  Memory& memory_;
};

std::array<std::atomic<Device*>, kDevices> devices;
std::atomic<std::uint64_t> waits = 0, launches = 0;

/// Starts a thread that runs GPUs' work while no thread waits for them. Called with the first work
/// that depends on others: these may wait for this process without calling into its GPUs.
void go_on_alone() {
  static const bool started = [] {
    std::thread([] {
      for (;;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        help_others();
      }
    }).detach();
    return true;
  }();
  (void)started;
}

}  // namespace

Device::Device(int index)
    : memory(index, number_of("SORTIE_EMULATED_GPU_MEMORY", std::size_t{1} << 36)),
      slow(std::chrono::microseconds(fault_of("slow", index, 0))),
      kernels_left(fault_of("hang", index, kNever)),
      index_(index),
      random_(number_of("SORTIE_TEST_SEED", 1)) {}

void Device::run(const Work& work) {
  if (work.run) work.run();
  clock += std::chrono::microseconds(1);
  if (!work.kernel) return;
  clock += slow;
  if (kernels_left != kNever) --kernels_left;
}

std::uint64_t Device::random() {
  std::uint64_t z = (random_ += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  return z ^ (z >> 31);
}

void Device::add(Stream& stream, Item item) {
  if (item.work.ready) go_on_alone();
  stream.items.push_back(std::move(item));
  if (random() % 32 == 0) do_some();
}

Stream& Device::default_stream() {
  const std::lock_guard lock(mutex);
  if (default_ == nullptr) streams.push_back(default_ = new Stream{.device = index_});
  return *default_;
}

bool Device::idle() const {
  return std::ranges::all_of(streams, [](const Stream* s) { return s->items.empty(); });
}

bool Device::stands_still() const {
  return std::ranges::all_of(streams, [this](const Stream* stream) {
    if (stream->items.empty()) return true;
    const Item& front = stream->items.front();
    return (front.after && !front.after->passed) || hangs_at(front.work) ||
           (front.work.has_news && !front.work.has_news());
  });
}

void Device::do_some() {
  if (stands_still()) return;
  name_faults();
  const Open open(memory);
  begin_turns();
  for (std::uint64_t count = 1 + random() % 31; count > 0 && run_one() == Ran::one; --count) {
  }
}

bool Device::has_more_than(const Point& point) const {
  return std::ranges::any_of(streams, [&](const Stream* stream) {
    const auto& items = stream->items;
    const auto it = std::ranges::find(
        items, &point, [](const Item& item) -> const Point* { return item.passes.get(); });
    if (it == items.end()) return false;
    // One kernel may be a mark of progress, which does not keep a GPU busy.
    const auto works = [](const Item& item) { return static_cast<bool>(item.work.run); };
    return std::any_of(it + 1, items.end(),
                       [](const Item& item) { return item.graph != nullptr; }) ||
           std::count_if(it + 1, items.end(), works) > 1;
  });
}

void Device::run_until(const std::function<bool()>& done) {
  while (!done()) {
    Ran ran = Ran::one;
    if (stands_still()) {
      const bool may_come = std::ranges::any_of(streams, [](const Stream* stream) {
        return !stream->items.empty() &&
               (stream->items.front().foreign || stream->items.front().work.has_news);
      });
      ran = may_come || kernels_left == 0 ? Ran::none_yet : Ran::none;
    } else {
      name_faults();
      const Open open(memory);
      begin_turns();
      while (ran == Ran::one && !done()) ran = run_one();
    }
    SORTIE_CHECK(ran != Ran::none, "streams wait for events that no stream will reach");
    if (ran == Ran::one) continue;
    // Only the caller's lock is held here; a thread that runs a collective for this GPU needs none.
    mutex.unlock();
    help_others();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    mutex.lock();
  }
}

Device::Ran Device::run_one() {
  if (random() % turns_ == 0) first_ = random();
  Ran otherwise = Ran::none;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    Stream& stream = *streams[(first_ + i) % streams.size()];
    if (stream.items.empty()) continue;
    Item& front = stream.items.front();
    if (front.after && !front.after->passed) {
      if (front.foreign) otherwise = Ran::none_yet;
      continue;
    }
    if (!may_run(front.work)) {
      otherwise = Ran::none_yet;
      continue;
    }
    if (front.graph && !front.graph->done()) {
      if (front.graph->run_one(*this, random())) return Ran::one;
      otherwise = Ran::none_yet;
      continue;
    }
    const Item item = std::move(front);
    stream.items.pop_front();
    run(item.work);
    if (item.passes) {
      item.passes->when = clock;
      item.passes->passed = true;
    }
    return Ran::one;
  }
  return otherwise;
}

bool GraphRun::run_one(Device& on, std::uint64_t random) {
  const auto& nodes = graph_->nodes;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::size_t n = (random + i) % nodes.size();
    if (done_[n] ||
        !std::ranges::all_of(nodes[n].after, [&](auto before) { return done_[before]; }))
      continue;
    if (!on.may_run(nodes[n].work)) continue;
    on.run(nodes[n].work);
    done_[n] = true;
    --left_;
    return true;
  }
  return false;
}

int device_count() {
  return static_cast<int>(
      std::min<std::uint64_t>(number_of("SORTIE_EMULATED_GPUS", kDevices), kDevices));
}

Device& device(int index) {
  static std::mutex making;
  std::atomic<Device*>& it = devices[static_cast<std::size_t>(index)];
  if (Device* made = it) return *made;
  std::lock_guard lock(making);
  if (it == nullptr) it = new Device(index);  // never destroyed
  return *it;
}

void help_others() {
  for (const auto& each : devices)
    if (Device* one = each; one != nullptr && one->mutex.try_lock()) {
      one->do_some();
      one->mutex.unlock();
    }
}

bool fault_in_memory(const void* address, FaultLine& line) {
  return std::ranges::any_of(devices, [&](const auto& each) {
    const Device* one = each;
    return one != nullptr && one->memory.fault(address, line);
  });
}

}  // namespace emulated_cuda

void emulated_cuda::count_wait() {
  ++emulated_cuda::waits;
}
void emulated_cuda::count_launch() {
  ++emulated_cuda::launches;
}

/// For tests, which look it up in the module: how often the host waited for unfinished work while
/// the GPU had no later work queued. Such a GPU is idle until the host continues.
extern "C" [[gnu::visibility("default")]] std::uint64_t sortie_emulated_waits() {
  return emulated_cuda::waits;
}

/// Same: how often the host gave a GPU work: a kernel, a copy, a fill, a collective or a whole
/// graph. Captured work does not count.
extern "C" [[gnu::visibility("default")]] std::uint64_t sortie_emulated_launches() {
  return emulated_cuda::launches;
}

extern "C" [[gnu::visibility("default")]] void sortie_emulated_slow(int gpu, std::uint64_t ns) {
  emulated_cuda::Device& it = emulated_cuda::device(gpu);
  const std::lock_guard lock(it.mutex);
  it.slow = std::chrono::nanoseconds(ns);
}

extern "C" [[gnu::visibility("default")]] void sortie_emulated_hang(int gpu,
                                                                    std::uint64_t kernels) {
  emulated_cuda::Device& it = emulated_cuda::device(gpu);
  const std::lock_guard lock(it.mutex);
  it.kernels_left = kernels;
}

extern "C" [[gnu::visibility("default")]] void sortie_emulated_idle(int gpu, std::uint64_t ns) {
  emulated_cuda::Device& it = emulated_cuda::device(gpu);
  const std::lock_guard lock(it.mutex);
  it.clock += std::chrono::nanoseconds(ns);
}
