// The caching allocator: free blocks are kept per size class (steps of an eighth of a power of
// two).
#include "trainer/tensor/allocator.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <new>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "common/base/check.h"
#include "common/base/size_class.h"
#include "trainer/tensor/device_memory.h"
#include "trainer/tensor/device_module.h"

namespace sortie::trainer {

namespace {

/// The memory of a GPU as its driver reports it, other processes' included; zeros if it does not.
struct DeviceRoom {
  std::size_t free = 0, total = 0;
};
DeviceRoom room_of(Device device) {
  if (!memory_is_apart(device)) return {};
  try {
    const auto module = load_cuda_module();
    if (!module) return {};
    const auto gpus = (*module)->gpus();
    const auto index = static_cast<std::size_t>(device.index);
    if (!gpus || index >= gpus->size()) return {};
    const auto free = (*module)->open(device);
    if (!free) return {};
    return {*free, (*gpus)[index].memory_bytes};
  } catch (const DeviceError&) {
    return {};  // lack of memory is reported rather than this
  }
}

}  // namespace

OutOfMemory::OutOfMemory(Device device, std::size_t asked, std::size_t in_use, std::size_t reserved)
    : device_(device) {
  const auto mebibytes = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  const DeviceRoom room = room_of(device);
  // What this process has not allocated belongs to other ones, or to the driver and libraries.
  const std::size_t known = room.free + reserved;
  if (room.total > 0)
    std::snprintf(text_, sizeof text_,
                  "GPU %d gave no %.0f MiB more: of its %.0f MiB tensors have %.0f MiB, %.0f MiB "
                  "wait to be used again, CUDA and other processes (see nvidia-smi) have %.0f MiB, "
                  "and %.0f MiB are free",
                  device.index, mebibytes(asked), mebibytes(room.total), mebibytes(in_use),
                  mebibytes(reserved - in_use),
                  mebibytes(room.total > known ? room.total - known : 0), mebibytes(room.free));
  else if (memory_is_apart(device))
    std::snprintf(text_, sizeof text_,
                  "GPU %d gave no %.0f MiB more: tensors have %.0f MiB of it, and %.0f MiB wait to "
                  "be used again",
                  device.index, mebibytes(asked), mebibytes(in_use), mebibytes(reserved - in_use));
  else
    std::snprintf(
        text_, sizeof text_,
        "the system gave no %.0f MiB more: tensors have %.0f MiB, and %.0f MiB wait to be "
        "used again",
        mebibytes(asked), mebibytes(in_use), mebibytes(reserved - in_use));
}

struct Allocator::State {
  explicit State(Device& wanted) : memory(make_device_memory(wanted)), device(wanted) {}

  std::shared_ptr<DeviceMemory> memory;
  const Device device;
  mutable std::mutex mutex;
  using FreeBlocks = std::unordered_map<std::size_t, std::vector<void*>>;
  FreeBlocks free_blocks, free_repeated;
  std::size_t in_use = 0;
  std::size_t peak = 0;
  std::size_t reserved = 0;
  std::size_t system_calls = 0;
  bool repeats = false;             // a RepeatedMemory exists
  std::unordered_set<void*> taken;  // blocks allocated in its scope and not yet freed
  std::size_t returned = 0;         // number of blocks of earlier scopes freed in its scope
  std::uint64_t repeated_version = 0;

  ~State() { give_back_free(); }

  void give_back_free() {
    if (!free_repeated.empty()) ++repeated_version;
    for (FreeBlocks* store : {&free_blocks, &free_repeated}) {
      for (auto& [size, blocks] : *store)
        for (void* block : blocks) {
          memory->give_back(block);
          reserved -= size;
        }
      store->clear();
    }
  }

  struct Block {
    void* address;
    bool repeated;
  };
  Block take(std::size_t size, std::size_t used) {
    std::lock_guard lock(mutex);
    void* block = take_free(size);
    if (block == nullptr) block = take_new(size, used);
    if (repeats) taken.insert(block);
    in_use += size;
    peak = std::max(peak, in_use);
    return {block, repeats};
  }

  void* take_free(std::size_t size) {
    auto& blocks = (repeats ? free_repeated : free_blocks)[size];
    if (blocks.empty()) return nullptr;
    void* block = blocks.back();
    blocks.pop_back();
    return block;
  }

  void* take_new(std::size_t size, std::size_t used) {
    void* block = memory->take(size, used);
    if (block == nullptr && memory_is_apart(device)) {
      // GPU memory is scarce: free cached blocks, whose sizes may not be needed any more, and
      // retry.
      give_back_free();
      block = memory->take(size, used);
    }
    if (block == nullptr) throw OutOfMemory(device, size, in_use, reserved);
    reserved += size;
    ++system_calls;
    return block;
  }

  void give_back(const Block& block, std::size_t size) {
    std::lock_guard lock(mutex);
    in_use -= size;
    if (!block.repeated) return free_blocks[size].push_back(block.address);
    if (!repeats)
      ++repeated_version;  // a block kept beyond its scope: graphs may have relied on its contents
    else if (taken.erase(block.address) == 0)
      ++returned;
    free_repeated[size].push_back(block.address);
  }

  void begin_repeated() {
    std::lock_guard lock(mutex);
    SORTIE_CHECK(!repeats, "memory of repeated work in another one's");
    repeats = true;
  }
  void end_repeated() {
    std::lock_guard lock(mutex);
    if (!taken.empty() || returned > 0) ++repeated_version;
    taken.clear();
    returned = 0;
    repeats = false;
  }
};

Allocator::Allocator(Device device) : device_(device), state_(std::make_shared<State>(device_)) {}
Allocator::~Allocator() = default;

std::shared_ptr<void> Allocator::allocate(std::size_t bytes) {
  const std::size_t size = size_class(bytes);
  const State::Block block = state_->take(size, bytes);
  return {block.address, [state = state_, size, block](void*) { state->give_back(block, size); }};
}

Allocator::RepeatedMemory::RepeatedMemory(Allocator& allocator) : allocator_(allocator) {
  allocator_.state_->begin_repeated();
}
Allocator::RepeatedMemory::~RepeatedMemory() {
  allocator_.state_->end_repeated();
}
std::uint64_t Allocator::repeated_version() const {
  std::lock_guard lock(state_->mutex);
  return state_->repeated_version;
}

DeviceMemory& Allocator::memory() const {
  return *state_->memory;
}

std::size_t Allocator::bytes_in_use() const {
  std::lock_guard lock(state_->mutex);
  return state_->in_use;
}
std::size_t Allocator::peak_bytes_in_use() const {
  std::lock_guard lock(state_->mutex);
  return state_->peak;
}
std::size_t Allocator::bytes_reserved() const {
  std::lock_guard lock(state_->mutex);
  return state_->reserved;
}
std::size_t Allocator::system_allocations() const {
  std::lock_guard lock(state_->mutex);
  return state_->system_calls;
}
void Allocator::reset_peak() {
  std::lock_guard lock(state_->mutex);
  state_->peak = state_->in_use;
}

}  // namespace sortie::trainer
