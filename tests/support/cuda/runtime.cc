// The runtime of the emulated GPUs: memory, streams, events. A device's streams run in whatever
// thread waits for them, late, and in any order that their events allow.
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "tests/support/cuda/grid.h"

namespace emulated_cuda {
namespace {

constexpr int kDevices = 16;
constexpr std::size_t kReserved = std::size_t{1} << 36;  // of addresses per device
constexpr std::size_t kAlignment = 512;                  // as cudaMalloc's, at least

using Passed = std::shared_ptr<bool>;

struct Item {
  std::function<void()> work;
  Passed passes, after;           // each may be null
  std::function<bool()> attempt;  // work that is done when it says so
};

}  // namespace

struct Stream {
  int device = 0;
  std::deque<Item> items;
};

struct Event {
  Passed latest;  // null: never recorded
  int device = 0;
};

namespace {

class Device {
 public:
  std::recursive_mutex mutex;
  std::vector<Stream*> streams;

  void* take(std::size_t size) {
    if (base_ == nullptr) {
      void* pages = mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                         -1, 0);
      SORTIE_CHECK(pages != MAP_FAILED, "no address space for an emulated GPU");
      base_ = static_cast<std::byte*>(pages);
    }
    size = (size + kAlignment - 1) / kAlignment * kAlignment;
    auto& free = free_[size];
    if (free.empty()) {
      if (kReserved - used_ < size) return nullptr;
      free.push_back(base_ + used_);
      used_ += size;
    }
    void* block = free.back();
    free.pop_back();
    sizes_[block] = size;
    return block;
  }
  bool give_back(void* block) {
    const auto found = sizes_.find(block);
    if (found == sizes_.end()) return false;
    free_[found->second].push_back(block);
    sizes_.erase(found);
    return true;
  }
  std::size_t in_use() const {
    std::size_t sum = 0;
    for (const auto& [block, size] : sizes_) sum += size;
    return sum;
  }

  /// Some of what waits, or all of it.
  void do_some() {
    for (std::uint64_t count = random() % 8; count > 0 && run_one(); --count) {
    }
  }
  /// Until `done` says so; the device can do nothing more before that: a mistake. Its caller has
  /// locked the mutex once.
  template <class Done>
  void run_until(const Done& done) {
    const Open open(*this);
    while (!done()) {
      if (run_one()) continue;
      SORTIE_CHECK(waits_for_others_, "streams wait for events that no stream will reach");
      // Others look at events in the meantime.
      mutex.unlock();
      usleep(50);
      mutex.lock();
    }
  }
  /// Some of what waits, again and again, without a call of the host's.
  void go_on_alone() {
    for (;;) {
      usleep(200);
      const std::lock_guard lock(mutex);
      while (run_one()) {
      }
    }
  }
  bool alone = false;  // a thread does that
  void add(Stream& stream, Item item) {
    stream.items.push_back(std::move(item));
    if (random() % 8 == 0) do_some();
  }
  std::uint64_t random() {
    std::uint64_t z = (random_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    return z ^ (z >> 31);
  }

 private:
  /// Access rights while it lives.
  struct Open {
    explicit Open(Device& d) : device(d) {
      if (device.depth_++ == 0) device.protect(PROT_READ | PROT_WRITE);
    }
    ~Open() {
      if (--device.depth_ == 0) device.protect(PROT_NONE);
    }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;
    Device& device;
  };

  bool run_one() {
    const std::size_t first = random();
    waits_for_others_ = false;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      Stream& stream = *streams[(first + i) % streams.size()];
      if (stream.items.empty()) continue;
      if (const Passed& after = stream.items.front().after; after && !*after) continue;
      if (const auto& attempt = stream.items.front().attempt) {
        const Open open(*this);
        if (!attempt()) {
          waits_for_others_ = true;
          continue;
        }
      }
      const Item item = std::move(stream.items.front());
      stream.items.pop_front();
      if (item.work) {
        const Open open(*this);
        item.work();
      }
      if (item.passes) *item.passes = true;
      return true;
    }
    return false;
  }
  void protect(int rights) {
    if (used_ == 0) return;
    SORTIE_CHECK(mprotect(base_, (used_ + 4095) / 4096 * 4096, rights) == 0,
                 "mprotect of an emulated GPU's memory");
  }

  std::byte* base_ = nullptr;
  std::size_t used_ = 0;
  std::map<std::size_t, std::vector<void*>> free_;
  std::map<void*, std::size_t> sizes_;
  int depth_ = 0;
  bool waits_for_others_ = false;  // as run_one() has found
  std::uint64_t random_ = seed();

  static std::uint64_t seed() {
    const char* text = std::getenv("SORTIE_TEST_SEED");
    return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
  }
};

Device& device(int index) {
  static auto& all = *new std::array<Device, kDevices>;  // threads may use it to the end
  return all[static_cast<std::size_t>(index)];
}
thread_local int chosen = 0;
using Lock = std::lock_guard<std::recursive_mutex>;

/// Blocks of pinned memory.
struct Pinned {
  std::mutex mutex;
  std::map<const std::byte*, std::size_t> blocks;
  bool has(const void* address) {
    std::lock_guard lock(mutex);
    const auto* byte = static_cast<const std::byte*>(address);
    auto after = blocks.upper_bound(byte);
    if (after == blocks.begin()) return false;
    --after;
    return byte < after->first + after->second;
  }
};
Pinned& pinned() {
  static Pinned all;
  return all;
}

cudaError_t add_to(Stream* stream, std::function<void()> work) {
  SORTIE_CHECK(stream != nullptr, "work for the default stream");
  Device& it = device(stream->device);
  Lock lock(it.mutex);
  it.add(*stream, {.work = std::move(work), .passes = {}, .after = {}, .attempt = {}});
  return cudaSuccess;
}

}  // namespace

void launch(dim3 blocks, dim3 threads, std::size_t shared_bytes, cudaStream_t stream,
            std::function<void()> kernel) {
  const std::uint64_t seed = device(stream->device).random();
  add_to(stream, [=, kernel = std::move(kernel)] {
    run_grid(blocks, threads, shared_bytes, kernel, seed);
  });
}

void enqueue(cudaStream_t stream, std::function<void()> work) {
  add_to(stream, std::move(work));
}

void enqueue_attempt(cudaStream_t stream, std::function<bool()> attempt) {
  Device& it = device(stream->device);
  const Lock lock(it.mutex);
  it.add(*stream, {.work = {}, .passes = {}, .after = {}, .attempt = std::move(attempt)});
  if (!std::exchange(it.alone, true)) std::thread([&it] { it.go_on_alone(); }).detach();
}

}  // namespace emulated_cuda

using namespace emulated_cuda;

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "emulated error";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = kDevices, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {"emulated GPU", 9, 0, 4, kReserved, 227 << 10};
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int index) {
  if (index < 0 || index >= kDevices) return cudaErrorInvalidDevice;
  chosen = index;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* index) { return *index = chosen, cudaSuccess; }
cudaError_t cudaDeviceSynchronize() {
  Device& it = device(chosen);
  Lock lock(it.mutex);
  it.run_until([&] {
    for (const Stream* stream : it.streams)
      if (!stream->items.empty()) return false;
    return true;
  });
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  Device& it = device(chosen);
  Lock lock(it.mutex);
  *total = kReserved;
  *free = kReserved - it.in_use();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** block, std::size_t size) {
  Device& it = device(chosen);
  Lock lock(it.mutex);
  *block = it.take(size);
  return *block != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* block) {
  cudaDeviceSynchronize();
  Device& it = device(chosen);
  Lock lock(it.mutex);
  return block == nullptr || it.give_back(block) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaMallocHost(void** block, std::size_t size) {
  *block = std::aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  if (*block == nullptr) return cudaErrorMemoryAllocation;
  std::lock_guard lock(pinned().mutex);
  pinned().blocks[static_cast<std::byte*>(*block)] = size;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* block) {
  {
    std::lock_guard lock(pinned().mutex);
    if (pinned().blocks.erase(static_cast<std::byte*>(block)) == 0) return cudaErrorInvalidValue;
  }
  std::free(block);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (kind == cudaMemcpyHostToDevice && !pinned().has(from)) {
    // Taken now, as CUDA does with memory that is not pinned.
    auto bytes = std::make_shared<std::vector<std::byte>>(size);
    std::memcpy(bytes->data(), from, size);
    return add_to(stream, [=] { std::memcpy(to, bytes->data(), size); });
  }
  const cudaError_t added = add_to(stream, [=] { std::memcpy(to, from, size); });
  if (kind == cudaMemcpyDeviceToHost && !pinned().has(to)) return cudaStreamSynchronize(stream);
  return added;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind) {
  Stream stream{.device = chosen, .items = {}};
  Device& it = device(chosen);
  {
    Lock lock(it.mutex);
    it.streams.push_back(&stream);
  }
  cudaMemcpyAsync(to, from, size, kind, &stream);
  cudaDeviceSynchronize();
  Lock lock(it.mutex);
  std::erase(it.streams, &stream);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  SORTIE_CHECK(kind == cudaMemcpyDeviceToDevice, "a copy of rows between host and device");
  return add_to(stream, [=] {
    for (std::size_t row = 0; row < height; ++row)
      std::memcpy(static_cast<std::byte*>(to) + row * to_pitch,
                  static_cast<const std::byte*>(from) + row * from_pitch, width);
  });
}
cudaError_t cudaMemsetAsync(void* block, int value, std::size_t size, cudaStream_t stream) {
  return add_to(stream, [=] { std::memset(block, value, size); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new Stream{.device = chosen, .items = {}};
  Device& it = device(chosen);
  Lock lock(it.mutex);
  it.streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  cudaStreamSynchronize(stream);
  Device& it = device(stream->device);
  Lock lock(it.mutex);
  std::erase(it.streams, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Device& it = device(stream->device);
  Lock lock(it.mutex);
  it.run_until([&] { return stream->items.empty(); });
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Device& it = device(stream->device);
  Lock lock(it.mutex);
  it.do_some();
  return stream->items.empty() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Device& it = device(stream->device);
  Lock lock(it.mutex);
  if (event->latest) it.add(*stream, {.work = {}, .passes = {}, .after = event->latest, .attempt = {}});
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new Event{.latest = {}, .device = chosen};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Device& it = device(stream->device);
  Lock lock(it.mutex);
  event->latest = std::make_shared<bool>(false);
  it.add(*stream, {.work = {}, .passes = event->latest, .after = {}, .attempt = {}});
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!event->latest) return cudaSuccess;
  Device& it = device(event->device);
  Lock lock(it.mutex);
  if (!*event->latest) it.do_some();
  return *event->latest ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (!event->latest) return cudaSuccess;
  Device& it = device(event->device);
  Lock lock(it.mutex);
  it.run_until([&] { return *event->latest; });
  return cudaSuccess;
}
