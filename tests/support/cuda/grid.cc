// Blocks of threads as fibers. One block at a time; its threads run until a barrier or an exchange,
// in a random order; what is missing between them shows as another result.
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <vector>

#include "common/base/check.h"
#include "tests/support/cuda/grid.h"
#include "tests/support/cuda/tensor_core.h"

namespace emulated_cuda {
namespace {

namespace context = boost::context;

constexpr std::size_t kWarp = 32;
constexpr std::size_t kExchangeBytes = 64;
constexpr std::size_t kMaxThreads = 1024;
constexpr std::size_t kMaxShared = 227 << 10;  // of sm_90
constexpr std::size_t kStack = 64 << 10;

enum class State { fresh, at_block, at_warp, done };

struct Copy {
  std::byte* to;
  const std::byte* from;  // null: zeros
  std::size_t size, group;
};

struct Thread {
  Place place;
  State state = State::fresh;
  std::size_t exchanges = 0;
  std::vector<Copy> copies;  // under way
  std::size_t groups = 0;    // of copies, committed
  struct Worker* worker = nullptr;
};

/// A fiber, which runs one thread after another.
struct Worker {
  context::fiber fiber;    // where it goes on, while it waits
  context::fiber back;     // where its resumer goes on, while it runs
};

struct Warp {
  // Two, in turn: who is at its next exchange does not overwrite what others still read.
  std::array<std::array<std::byte, kWarp * kExchangeBytes>, 2> slots;
};

class Machine {
 public:
  void run(dim3 blocks, dim3 threads, std::size_t shared_bytes, const std::function<void()>& kernel,
           std::uint64_t seed);

  Thread* current = nullptr;
  std::vector<Warp> warps;
  std::byte* shared = nullptr;
  void wait(State state) {
    Worker& worker = *current->worker;
    current->state = state;
    worker.back = std::move(worker.back).resume();
  }

 private:
  void run_block(const std::function<void()>& kernel);
  void resume(Thread& thread, const std::function<void()>& kernel);
  bool release_warps(const std::function<void()>& kernel);
  bool release_block(const std::function<void()>& kernel);
  void place_shared(std::size_t bytes);
  std::uint64_t random() {
    std::uint64_t z = (random_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    return z ^ (z >> 31);
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random() % i]);
  }

  std::vector<Thread> threads_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> idle_;
  const std::function<void()>* kernel_ = nullptr;
  std::uint64_t random_ = 0;
  std::byte* shared_pages_ = nullptr;
};

Machine& machine() {
  static thread_local Machine one;
  return one;
}

/// The end of shared memory is the end of a page, behind which nothing can be touched.
void Machine::place_shared(std::size_t bytes) {
  constexpr std::size_t kRoom = (kMaxShared + 4095) / 4096 * 4096;
  if (shared_pages_ == nullptr) {
    void* pages = mmap(nullptr, kRoom + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                       -1, 0);
    SORTIE_CHECK(pages != MAP_FAILED, "no memory for an emulated block");
    shared_pages_ = static_cast<std::byte*>(pages);
    SORTIE_CHECK(mprotect(shared_pages_ + kRoom, 4096, PROT_NONE) == 0, "mprotect");
  }
  SORTIE_CHECK(bytes <= kMaxShared, "a kernel asks for {} bytes of shared memory per block", bytes);
  shared = shared_pages_ + (kRoom - (bytes + 15) / 16 * 16);
  std::memset(shared, 0xff, (bytes + 15) / 16 * 16);  // NaN
}

void Machine::resume(Thread& thread, const std::function<void()>& kernel) {
  kernel_ = &kernel;
  if (thread.state == State::fresh) {
    if (idle_.empty()) {
      workers_.push_back(std::make_unique<Worker>());
      Worker* worker = workers_.back().get();
      worker->fiber = context::fiber(
          std::allocator_arg, context::protected_fixedsize_stack(kStack),
          [this, worker](context::fiber&& back) {
            worker->back = std::move(back);
            for (;;) {
              (*kernel_)();
              current->state = State::done;
              worker->back = std::move(worker->back).resume();
            }
            return std::move(worker->back);
          });
      idle_.push_back(worker);
    }
    thread.worker = idle_.back();
    idle_.pop_back();
  }
  current = &thread;
  Worker& worker = *thread.worker;
  worker.fiber = std::move(worker.fiber).resume();
  if (thread.state == State::done) idle_.push_back(thread.worker);
}

bool Machine::release_warps(const std::function<void()>& kernel) {
  bool released = false;
  std::vector<std::size_t> order(warps.size());
  std::iota(order.begin(), order.end(), 0);
  shuffle(order);
  for (const std::size_t warp : order) {
    const std::size_t first = warp * kWarp, last = std::min(first + kWarp, threads_.size());
    std::vector<std::size_t> lanes(last - first);
    std::iota(lanes.begin(), lanes.end(), first);
    if (!std::ranges::all_of(lanes, [&](auto i) { return threads_[i].state == State::at_warp; }))
      continue;
    shuffle(lanes);
    for (const std::size_t lane : lanes) resume(threads_[lane], kernel);
    released = true;
  }
  return released;
}

bool Machine::release_block(const std::function<void()>& kernel) {
  std::vector<std::size_t> waiting;
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    if (threads_[i].state == State::at_block) waiting.push_back(i);
    if (threads_[i].state == State::at_warp) return false;
  }
  shuffle(waiting);
  for (const std::size_t i : waiting) resume(threads_[i], kernel);
  return !waiting.empty();
}

void Machine::run_block(const std::function<void()>& kernel) {
  // Warps begin in a random order, as they do on a GPU.
  std::vector<std::size_t> order(warps.size());
  std::iota(order.begin(), order.end(), 0);
  shuffle(order);
  for (const std::size_t warp : order)
    for (std::size_t i = warp * kWarp; i < std::min((warp + 1) * kWarp, threads_.size()); ++i)
      resume(threads_[i], kernel);
  for (;;) {
    if (release_warps(kernel)) continue;
    if (release_block(kernel)) continue;
    const bool done =
        std::ranges::all_of(threads_, [](const Thread& t) { return t.state == State::done; });
    SORTIE_CHECK(done, "threads of an emulated block wait for threads that never come");
    return;
  }
}

void Machine::run(dim3 blocks, dim3 threads, std::size_t shared_bytes,
                  const std::function<void()>& kernel, std::uint64_t seed) {
  random_ = seed;
  const std::size_t count = std::size_t{threads.x} * threads.y * threads.z;
  SORTIE_CHECK(count > 0 && count <= kMaxThreads, "a block of {} threads", count);
  SORTIE_CHECK(blocks.y <= 65535 && blocks.z <= 65535, "{} x {} blocks in y and z", blocks.y,
               blocks.z);
  warps.resize((count + kWarp - 1) / kWarp);
  for (unsigned z = 0; z < blocks.z; ++z)
    for (unsigned y = 0; y < blocks.y; ++y)
      for (unsigned x = 0; x < blocks.x; ++x) {
        place_shared(shared_bytes);
        threads_.assign(count, {});
        for (std::size_t i = 0; i < count; ++i) {
          const auto linear = static_cast<unsigned>(i);
          threads_[i].place = {{linear % threads.x, linear / threads.x % threads.y,
                                linear / (threads.x * threads.y)},
                               {x, y, z},
                               threads,
                               blocks};
        }
        run_block(kernel);
      }
  current = nullptr;
}

}  // namespace

void run_grid(dim3 blocks, dim3 threads, std::size_t shared_bytes,
              const std::function<void()>& kernel, std::uint64_t seed) {
  machine().run(blocks, threads, shared_bytes, kernel, seed);
}

const Place& place() {
  return machine().current->place;
}

void* shared_memory() {
  return machine().shared;
}

void sync_block() {
  machine().wait(State::at_block);
}

const std::byte* exchange_in_warp(const void* mine, std::size_t size) {
  Machine& it = machine();
  Thread& thread = *it.current;
  SORTIE_CHECK(size <= kExchangeBytes, "an exchange of {} bytes", size);
  const dim3 at = thread.place.thread, sizes = thread.place.block_size;
  const std::size_t linear = at.x + std::size_t{sizes.x} * (at.y + std::size_t{sizes.y} * at.z);
  std::byte* slots = it.warps[linear / kWarp].slots[thread.exchanges++ % 2].data();
  std::memcpy(slots + linear % kWarp * size, mine, size);
  it.wait(State::at_warp);
  return slots;
}

void copy_async(void* shared, const void* global, std::size_t size, bool valid) {
  const auto aligned = [&](const void* at) {
    return reinterpret_cast<std::uintptr_t>(at) % size == 0;
  };
  SORTIE_CHECK(aligned(shared) && (!valid || aligned(global)), "a copy of {} bytes is not aligned",
               size);
  Thread& thread = *machine().current;
  thread.copies.push_back({static_cast<std::byte*>(shared),
                           valid ? static_cast<const std::byte*>(global) : nullptr, size,
                           thread.groups});
}

void commit_copies() {
  ++machine().current->groups;
}

void wait_copies(std::size_t groups_left) {
  Thread& thread = *machine().current;
  std::erase_if(thread.copies, [&](const Copy& copy) {
    if (copy.group + groups_left >= thread.groups) return false;
    if (copy.from != nullptr)
      std::memcpy(copy.to, copy.from, copy.size);
    else
      std::memset(copy.to, 0, copy.size);
    return true;
  });
}

}  // namespace emulated_cuda
