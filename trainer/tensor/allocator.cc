// The caching allocator: free blocks are kept per size class (steps of an eighth of a power of
// two).
#include "trainer/tensor/allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

#include "common/base/check.h"
#include "common/base/size_class.h"

namespace sortie::trainer {
namespace {

/// A block of `size` bytes, of which `used` are asked for now.
void* system_allocate(std::size_t size, std::size_t used) {
  const std::size_t alignment = size >= kHugePage ? kHugePage : kBlockAlignment;
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* block = std::aligned_alloc(alignment, rounded);
  if (block == nullptr) throw std::bad_alloc();
  // A hint: where the system refuses it, the block is on small pages. The tail stays on those: a
  // large one there would take memory that nobody uses.
  if (const std::size_t whole = used / kHugePage * kHugePage; whole > 0)
    (void)madvise(block, whole, MADV_HUGEPAGE);
  return block;
}

}  // namespace

struct Allocator::State {
  mutable std::mutex mutex;
  std::unordered_map<std::size_t, std::vector<void*>> free_blocks;
  std::size_t in_use = 0;
  std::size_t peak = 0;
  std::size_t reserved = 0;
  std::size_t system_calls = 0;

  ~State() {
    for (auto& [size, blocks] : free_blocks)
      for (void* block : blocks) std::free(block);
  }

  void* take(std::size_t size, std::size_t used) {
    std::lock_guard lock(mutex);
    in_use += size;
    peak = std::max(peak, in_use);
    auto& blocks = free_blocks[size];
    if (!blocks.empty()) {
      void* block = blocks.back();
      blocks.pop_back();
      return block;
    }
    reserved += size;
    ++system_calls;
    return system_allocate(size, used);
  }

  void give_back(void* block, std::size_t size) {
    std::lock_guard lock(mutex);
    in_use -= size;
    free_blocks[size].push_back(block);
  }
};

Allocator::Allocator() : state_(std::make_shared<State>()) {}
Allocator::~Allocator() = default;

std::shared_ptr<void> Allocator::allocate(std::size_t bytes) {
  const std::size_t size = size_class(bytes);
  void* block = state_->take(size, bytes);
  return {block, [state = state_, size](void* returned) { state->give_back(returned, size); }};
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
