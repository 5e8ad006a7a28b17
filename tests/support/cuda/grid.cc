// Runs blocks one at a time, with a fiber per thread. The lanes of a warp run one after another in
// a random order until each waits or has returned; then any warp that can continue is next. So
// missing synchronization between threads changes the result.
#include "tests/support/cuda/grid.h"

#include <sys/mman.h>

#include <array>
#include <memory>
#include <numeric>
#include <vector>

#include "common/base/check.h"
#include "tests/support/cuda/fiber.h"
#include "tests/support/cuda/tensor_core.h"

namespace emulated_cuda {

constinit thread_local Place here;

namespace {

constexpr unsigned kWarp = 32;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kRoom = (kMaxSharedBytes + kPage - 1) / kPage * kPage;

/// State of a thread.
enum At : unsigned char { fresh, at_exchange, at_warp, at_block, done, kPlaces };

struct Copy {
  std::byte* to;
  const std::byte* from;  // nullptr: zeros
  std::size_t size, group;
};

struct Thread {
  dim3 index;
  struct Worker* worker = nullptr;
  std::vector<Copy> copies;  // in progress
  std::size_t groups = 0;    // committed groups of copies
  At at = fresh;
};

class Machine;
/// A fiber that runs threads, one after another.
struct Worker {
  explicit Worker(Machine& of) : machine(&of), fiber(&Worker::body, this) {}
  static void body(void* self);
  Machine* machine;
  Fiber fiber;
};

struct Warp {
  unsigned first = 0, lanes = 0;
  std::array<unsigned, kPlaces> count{};  // of lanes in each state
  std::size_t size = 0;                   // bytes that each lane exchanges
  WarpFunction function = nullptr;
  unsigned turn = 0;
  // Used alternately, so that a lane at its next exchange does not overwrite what others still
  // read.
  std::array<std::array<std::byte, kWarp * kExchangeBytes>, 2> given, computed;
};

class Machine {
 public:
  void run(dim3 blocks, dim3 threads, std::size_t shared_bytes, const std::function<void()>& kernel,
           std::uint64_t seed);
  /// Suspends the current thread until it can continue.
  void wait(At at) {
    stop(at);
    const unsigned self = here.index;
    const int next = pick();
    if (next == static_cast<int>(self)) return;
    Worker& mine = *threads_[self].worker;
    Worker*& other = threads_[static_cast<unsigned>(next)].worker;
    if (other == nullptr) other = idle_worker();
    enter(static_cast<unsigned>(next));
    mine.fiber.switch_to(other->fiber);
  }
  void work(Worker& self);
  Thread& current() { return threads_[here.index]; }
  Warp& warp() { return *warps_[here.index / kWarp]; }
  bool fault(const void* address, FaultLine& line);

 private:
  /// Returns the thread to run next, or -1 after the last block.
  int pick();
  void settle(Warp& warp);
  void begin_block();
  void release(unsigned warp);
  void shape(dim3 threads);
  void place_shared();
  Worker* idle_worker();
  void stop(At at) {
    current().at = at;
    ++warp().count[at];
  }
  void enter(unsigned thread) {
    here.index = thread;
    here.thread = threads_[thread].index;
  }
  std::uint64_t random() {
    std::uint64_t z = (random_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    return z ^ (z >> 31);
  }

  Fiber main_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> idle_;
  const std::function<void()>* kernel_ = nullptr;
  std::uint64_t random_ = 0;

  // The grid. The next block is `block_` plus `step_`, modulo their number.
  std::uint64_t blocks_ = 0, blocks_left_ = 0, block_ = 0, step_ = 0;
  std::size_t shared_bytes_ = 0;
  std::byte* shared_pages_ = nullptr;

  // The current block.
  std::vector<Thread> threads_;  // at least one per thread of the block
  unsigned count_ = 0;
  std::vector<std::unique_ptr<Warp>> warps_;
  std::vector<unsigned> ready_,
      waiting_;                          // warps: which can continue, and at the block's barrier
  int warp_ = -1;                        // the warp whose lanes run now
  std::array<unsigned, kWarp> queue_{};  // its lanes that have yet to run
  unsigned queued_ = 0, taken_ = 0;
};

Machine& machine() {
  static thread_local Machine one;
  return one;
}
// Accessed without a function call, because every exchange needs it.
[[gnu::tls_model("initial-exec")]] constinit thread_local Machine* running = nullptr;

void Worker::body(void* self) {
  auto& worker = *static_cast<Worker*>(self);
  worker.machine->work(worker);
}

Worker* Machine::idle_worker() {
  if (idle_.empty()) {
    workers_.push_back(std::make_unique<Worker>(*this));
    return workers_.back().get();
  }
  Worker* worker = idle_.back();
  idle_.pop_back();
  return worker;
}

/// Runs one thread after another on one fiber, until the next one has its own fiber.
void Machine::work(Worker& self) {
  for (;;) {
    (*kernel_)();
    stop(done);
    const int next = pick();
    if (next >= 0) {
      Worker*& other = threads_[static_cast<unsigned>(next)].worker;
      enter(static_cast<unsigned>(next));
      if (other == nullptr) {
        other = &self;
        continue;
      }
      idle_.push_back(&self);
      self.fiber.switch_to(other->fiber);
    } else {
      idle_.push_back(&self);
      self.fiber.switch_to(main_);
    }
  }
}

int Machine::pick() {
  while (taken_ == queued_) {
    if (warp_ >= 0) settle(*warps_[static_cast<unsigned>(warp_)]);
    if (warp_ >= 0) {  // its exchange is complete: continue with it, or with another warp
      if (random() % 4 != 0) {
        release(static_cast<unsigned>(warp_));
        break;
      }
      ready_.push_back(static_cast<unsigned>(warp_));
      warp_ = -1;
    }
    if (ready_.empty()) {
      if (waiting_.empty()) {
        if (blocks_left_ == 0) return -1;
        begin_block();
      } else {  // all are at the barrier of the block
        std::swap(ready_, waiting_);
      }
    }
    const std::size_t chosen = random() % ready_.size();
    const unsigned warp = ready_[chosen];
    ready_[chosen] = ready_.back();
    ready_.pop_back();
    release(warp);
  }
  return static_cast<int>(queue_[taken_++]);
}

/// Called when all lanes of the warp have gone as far as they can. The warp stays the current one
/// if its exchange is complete.
void Machine::settle(Warp& warp) {
  auto& count = warp.count;
  const auto name = [&] {
    return fmt::format("warp {} of block ({}, {}, {}): ", warp.first / kWarp, here.block.x,
                       here.block.y, here.block.z);
  };
  if (count[at_exchange] > 0) {
    SORTIE_CHECK(count[done] == 0, "{}a shuffle or vote of {} lanes, {} others have returned",
                 name(), count[at_exchange], count[done]);
    SORTIE_CHECK(count[at_exchange] == warp.lanes,
                 "{}{} of {} lanes are at a shuffle or vote, the others at a barrier", name(),
                 count[at_exchange], warp.lanes);
    SORTIE_CHECK(warp.lanes == kWarp, "{}a shuffle or vote in a warp of {} threads", name(),
                 warp.lanes);
    auto& turn = warp.given[warp.turn % 2];
    if (warp.function != nullptr) warp.function(turn.data(), warp.computed[warp.turn % 2].data());
    ++warp.turn;
    warp.size = 0;
  } else if (count[at_warp] > 0) {
    SORTIE_CHECK(count[at_warp] + count[done] == warp.lanes,
                 "{}{} lanes are at __syncwarp(), {} at __syncthreads()", name(), count[at_warp],
                 count[at_block]);
  } else {
    if (count[at_block] > 0) waiting_.push_back(warp.first / kWarp);
    warp_ = -1;
  }
}

/// Queues the lanes of the warp that have not returned.
void Machine::release(unsigned index) {
  Warp& warp = *warps_[index];
  warp_ = static_cast<int>(index);
  for (const At at : {at_exchange, at_warp, at_block}) warp.count[at] = 0;
  taken_ = queued_ = 0;
  const std::uint64_t bits = random();
  const auto step = static_cast<unsigned>(bits) | 1u, start = static_cast<unsigned>(bits >> 32);
  for (unsigned i = 0; i < kWarp; ++i) {
    const unsigned lane = (start + i * step) % kWarp;  // the step is odd, so each lane occurs once
    if (lane < warp.lanes && threads_[warp.first + lane].at != done)
      queue_[queued_++] = warp.first + lane;
  }
}

void Machine::begin_block() {
  --blocks_left_;
  block_ += step_;
  if (block_ >= blocks_) block_ -= blocks_;
  const std::uint64_t row = block_ / here.grid.x;
  here.block = {static_cast<unsigned>(block_ % here.grid.x),
                static_cast<unsigned>(row % here.grid.y), static_cast<unsigned>(row / here.grid.y)};
  if (shared_bytes_ > 0) std::memset(here.shared, 0xff, shared_bytes_);  // NaN
  for (unsigned i = 0; i < count_; ++i) {
    Thread& thread = threads_[i];
    thread.worker = nullptr;
    thread.copies.clear();
    thread.groups = 0;
    thread.at = fresh;
  }
  for (unsigned i = 0; i < (count_ + kWarp - 1) / kWarp; ++i) {
    warps_[i]->count = {};
    ready_.push_back(i);
  }
}

/// No-op if the block has the size of the previous kernel's, which is frequent.
void Machine::shape(dim3 threads) {
  const unsigned count = threads.x * threads.y * threads.z;
  const dim3& was = here.block_size;
  if (count == count_ && threads.x == was.x && threads.y == was.y) return;
  here.block_size = threads;
  count_ = count;
  if (threads_.size() < count) threads_.resize(count);
  for (unsigned i = 0; i < count; ++i)
    threads_[i].index = {i % threads.x, i / threads.x % threads.y, i / (threads.x * threads.y)};
  for (unsigned first = 0; first < count; first += kWarp) {
    if (first / kWarp == warps_.size()) warps_.push_back(std::make_unique<Warp>());
    warps_[first / kWarp]->first = first;
    warps_[first / kWarp]->lanes = std::min(kWarp, count - first);
  }
}

/// Places shared memory so that it ends at a guard page.
void Machine::place_shared() {
  if (shared_pages_ == nullptr) {
    void* pages =
        mmap(nullptr, kRoom + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SORTIE_CHECK(pages != MAP_FAILED, "no memory for an emulated block");
    shared_pages_ = static_cast<std::byte*>(pages);
    SORTIE_CHECK(mprotect(shared_pages_ + kRoom, kPage, PROT_NONE) == 0, "mprotect");
  }
  here.shared = shared_pages_ + (kRoom - shared_bytes_);
}

void Machine::run(dim3 blocks, dim3 threads, std::size_t shared_bytes,
                  const std::function<void()>& kernel, std::uint64_t seed) {
  SORTIE_CHECK(kernel_ == nullptr, "a kernel starts another one");
  running = this;
  kernel_ = &kernel;
  random_ = seed;
  shape(threads);
  here.grid = blocks;
  shared_bytes_ = (shared_bytes + 15) / 16 * 16;
  place_shared();
  blocks_ = blocks_left_ = std::uint64_t{blocks.x} * blocks.y * blocks.z;
  block_ = random() % blocks_;
  do step_ = 1 + random() % blocks_;
  while (std::gcd(step_, blocks_) != 1);
  const int first = pick();
  Worker* worker = idle_worker();
  threads_[static_cast<unsigned>(first)].worker = worker;
  enter(static_cast<unsigned>(first));
  main_.switch_to(worker->fiber);
  kernel_ = nullptr;
}

bool Machine::fault(const void* address, FaultLine& line) {
  if (kernel_ == nullptr) return false;
  const auto* byte = static_cast<const std::byte*>(address);
  const std::byte* end = shared_pages_ + kRoom;
  if (byte >= end && byte < end + kPage) {
    line.add("a kernel is {} bytes behind the {} bytes of its block's shared memory",
             byte - end + 1, shared_bytes_);
    return true;
  }
  if (current().worker != nullptr && current().worker->fiber.overflows_at(address)) {
    line.add("a kernel's thread needs more stack than the emulation gives it");
    return true;
  }
  return false;
}

}  // namespace

void run_grid(dim3 blocks, dim3 threads, std::size_t shared_bytes,
              const std::function<void()>& kernel, std::uint64_t seed) {
  machine().run(blocks, threads, shared_bytes, kernel, seed);
}

bool fault_in_grid(const void* address, FaultLine& line) {
  return running != nullptr && running->fault(address, line);
}

void sync_block() {
  running->wait(at_block);
}

void sync_warp() {
  running->wait(at_warp);
}

void trap() {
  SORTIE_CHECK(false, "thread ({}, {}, {}) of block ({}, {}, {}) traps", here.thread.x,
               here.thread.y, here.thread.z, here.block.x, here.block.y, here.block.z);
  std::abort();
}

const std::byte* compute_in_warp(const void* mine, std::size_t size, WarpFunction function) {
  Warp& warp = running->warp();
  SORTIE_CHECK(size <= kExchangeBytes, "an exchange of {} bytes", size);
  if (warp.size == 0) {
    warp.size = size;
    warp.function = function;
  }
  SORTIE_CHECK(warp.size == size && warp.function == function,
               "lanes of a warp meet at different shuffles, votes or products");
  const unsigned turn = warp.turn % 2;
  std::memcpy(warp.given[turn].data() + here.index % kWarp * size, mine, size);
  running->wait(at_exchange);
  return (function != nullptr ? warp.computed : warp.given)[turn].data();
}

void copy_async(void* shared, const void* global, std::size_t size, bool valid) {
  const auto aligned = [&](const void* at) {
    return reinterpret_cast<std::uintptr_t>(at) % size == 0;
  };
  SORTIE_CHECK(aligned(shared) && (!valid || aligned(global)), "a copy of {} bytes is not aligned",
               size);
  Thread& thread = running->current();
  thread.copies.push_back({static_cast<std::byte*>(shared),
                           valid ? static_cast<const std::byte*>(global) : nullptr, size,
                           thread.groups});
}

void commit_copies() {
  ++running->current().groups;
}

void wait_copies(std::size_t groups_left) {
  Thread& thread = running->current();
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
