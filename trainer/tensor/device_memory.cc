// The sources of memory, and the page protection of guarded arenas.
#include "trainer/tensor/device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "common/base/check.h"
#include "common/base/size_class.h"
#include "trainer/tensor/device_module.h"

namespace sortie::trainer {
namespace {

class HeapMemory final : public DeviceMemory {
 public:
  void* take(std::size_t size, std::size_t used) override {
    const std::size_t alignment = size >= kHugePage ? kHugePage : kBlockAlignment;
    const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
    void* block = std::aligned_alloc(alignment, rounded);
    if (block == nullptr) return nullptr;
    // A hint: if the system refuses it, the block is on small pages. The tail stays on small pages,
    // because a large page there would take memory that is never used.
    if (const std::size_t whole = used / kHugePage * kHugePage; whole > 0)
      (void)madvise(block, whole, MADV_HUGEPAGE);
    return block;
  }
  void give_back(void* block) override { std::free(block); }
};

/// Addresses that no x86-64 process can map (not canonical): a read through one faults.
class NoMemory final : public DeviceMemory {
 public:
  void* take(std::size_t size, std::size_t) override {
    void* block = reinterpret_cast<void*>(next_);
    next_ += (size + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
    return block;
  }
  void give_back(void*) override {}

 private:
  std::uintptr_t next_ = std::uintptr_t{1} << 62;
};

/// Pages without access rights outside of OpenMemory. Each rank has its own arena, so that an op of
/// one thread does not open the memory of another rank.
class GuardedMemory final : public DeviceMemory {
 public:
  explicit GuardedMemory(int index) : index_(index) {
    reserved_ = mmap(nullptr, kReserved + kHugePage, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    SORTIE_CHECK(reserved_ != MAP_FAILED, "no address space for a guarded arena");
    const auto address = reinterpret_cast<std::uintptr_t>(reserved_);
    base_ = reinterpret_cast<std::byte*>((address + kHugePage - 1) / kHugePage * kHugePage);
    // A hint. The cost of each op grows with the number of pages whose rights change.
    (void)madvise(base_, kReserved, MADV_HUGEPAGE);
  }
  ~GuardedMemory() override;

  void* take(std::size_t size, std::size_t) override {
    std::lock_guard lock(mutex_);
    const std::size_t rounded = (size + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
    if (kReserved - used_ < rounded) return nullptr;
    void* block = base_ + used_;
    used_ += rounded;
    if (depth_ > 0) protect(PROT_READ | PROT_WRITE);
    return block;
  }
  void give_back(void*) override {}  // freed with the arena

  void open() {
    std::lock_guard lock(mutex_);
    if (depth_++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  void close() {
    std::lock_guard lock(mutex_);
    SORTIE_CHECK(depth_ > 0, "a guarded arena is closed twice");
    if (--depth_ == 0) protect(PROT_NONE);
  }
  bool is_open() const { return depth_ > 0; }

 private:
  static constexpr std::size_t kReserved = std::size_t{1} << 36;  // bytes of address space

  void protect(int rights) {
    if (used_ == 0) return;
    const std::size_t bytes = (used_ + kHugePage - 1) / kHugePage * kHugePage;
    SORTIE_CHECK(mprotect(base_, bytes, rights) == 0, "mprotect of a guarded arena");
  }

  const int index_;
  void* reserved_;   // the mapping
  std::byte* base_;  // the first large-page boundary in it
  std::size_t used_ = 0;
  std::atomic<int> depth_ = 0;
  std::mutex mutex_;
};

/// The arenas of this process by device index.
struct Arenas {
  std::mutex mutex;
  std::unordered_map<int, GuardedMemory*> by_index;
  int next = 0;

  GuardedMemory& of(Device device) {
    std::lock_guard lock(mutex);
    const auto found = by_index.find(device.index);
    SORTIE_CHECK(found != by_index.end(), "{} has no arena", device.to_string());
    return *found->second;
  }
};
Arenas& arenas() {
  static Arenas all;
  return all;
}

GuardedMemory::~GuardedMemory() {
  {
    std::lock_guard lock(arenas().mutex);
    arenas().by_index.erase(index_);
  }
  munmap(reserved_, kReserved + kHugePage);
}

}  // namespace

void DeviceMemory::read(const void* from, std::span<std::byte> to) {
  std::memcpy(to.data(), from, to.size());
}
void DeviceMemory::write(std::span<const std::byte> from, void* to) {
  std::memcpy(to, from.data(), from.size());
}

Event DeviceMemory::begin_read(const void* from, std::span<std::byte> to) {
  read(from, to);
  return {};
}
Event DeviceMemory::begin_write(std::span<const std::byte> from, void* to) {
  write(from, to);
  return {};
}
std::shared_ptr<std::byte[]> DeviceMemory::host_block(std::size_t size) {
  return std::make_shared_for_overwrite<std::byte[]>(size);
}
void DeviceMemory::pin(std::span<std::byte>) {}
void DeviceMemory::unpin(std::span<std::byte>) {}

std::shared_ptr<DeviceMemory> make_device_memory(Device& device) {
  switch (device.kind) {
    case DeviceKind::cuda:
      return cuda_module().memory(device);
    case DeviceKind::cpu:
      return std::make_shared<HeapMemory>();
    case DeviceKind::meta:
      return std::make_shared<NoMemory>();
    case DeviceKind::guarded:
      break;
  }
  std::lock_guard lock(arenas().mutex);
  device.index = arenas().next++;
  auto arena = std::make_shared<GuardedMemory>(device.index);
  arenas().by_index[device.index] = arena.get();
  return arena;
}

namespace {
thread_local int open_meta = 0;  // nesting depth of this thread's ops on meta devices
}  // namespace

OpenMemory::OpenMemory(Device device) : device_(device) {
  if (device.kind == DeviceKind::meta) ++open_meta;
  if (device.kind == DeviceKind::guarded) arenas().of(device).open();
}
OpenMemory::~OpenMemory() {
  if (device_.kind == DeviceKind::meta) --open_meta;
  if (device_.kind == DeviceKind::guarded) arenas().of(device_).close();
}

bool host_can_access(Device device) {
  if (device.kind == DeviceKind::cpu) return true;
  if (device.kind == DeviceKind::meta) return open_meta > 0;
  return device.kind == DeviceKind::guarded && arenas().of(device).is_open();
}

bool memory_is_apart(Device device) {
  return device.kind == DeviceKind::cuda;
}

DeviceMemory& apart_memory(Device device) {
  SORTIE_CHECK(memory_is_apart(device), "the host has the memory of {}", device.to_string());
  return *cuda_module().memory(device);  // the module keeps it alive
}

Event begin_read(Device device, const void* from, std::span<std::byte> to) {
  if (memory_is_apart(device)) return apart_memory(device).begin_read(from, to);
  const OpenMemory open(device);
  std::memcpy(to.data(), from, to.size());
  return {};
}

Event begin_write(Device device, std::span<const std::byte> from, void* to) {
  if (memory_is_apart(device)) return apart_memory(device).begin_write(from, to);
  const OpenMemory open(device);
  std::memcpy(to, from.data(), from.size());
  return {};
}

std::shared_ptr<std::byte[]> host_block(Device device, std::size_t size) {
  if (memory_is_apart(device)) return apart_memory(device).host_block(size);
  return std::make_shared_for_overwrite<std::byte[]>(size);
}

}  // namespace sortie::trainer
