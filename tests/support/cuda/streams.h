// The streams of an emulated GPU. Their work runs late, on whatever thread waits for one of them,
// and in any order that their events allow.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/cuda/memory.h"

namespace emulated_cuda {

/// A position in a stream.
struct Point {
  std::atomic<bool> passed = false;
  std::chrono::nanoseconds when = {};  // when it was passed, by its GPU's clock
};

/// An atomic unit of work in a stream. Each member may be empty.
struct Work {
  std::function<void()> run = {};
  std::function<bool()> ready = {};  // polled; `run` may run once it returns true
  /// Returns false if nothing has arrived since `ready` last returned false, so that `ready` need
  /// not be called. Called without access to the GPU's memory.
  std::function<bool()> has_news = {};
  bool kernel = false;
};

/// A captured graph: each node runs after the earlier nodes that it names.
struct Graph {
  struct Node {
    Work work;
    std::vector<std::size_t> after;
  };
  int device = 0;
  std::vector<Node> nodes;
};

/// One launch of a graph, whose nodes run interleaved with other streams.
class Device;
class GraphRun {
 public:
  explicit GraphRun(std::shared_ptr<const Graph> graph)
      : graph_(std::move(graph)), done_(graph_->nodes.size()), left_(done_.size()) {}
  /// Runs a node, which `random` selects. Returns false if every remaining node waits for
  /// something.
  bool run_one(Device& on, std::uint64_t random);
  bool done() const { return left_ == 0; }

 private:
  std::shared_ptr<const Graph> graph_;
  std::vector<bool> done_;
  std::size_t left_;
};

struct Item {
  Work work = {};
  std::shared_ptr<GraphRun> graph = {};
  std::shared_ptr<Point> passes = {}, after = {};
  bool foreign = false;  // `after` belongs to another GPU
};

/// A capture: streams whose calls are recorded.
struct Capture {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  std::vector<Stream*> streams;     // the first one began the capture; empty once it has ended
  cudaError_t error = cudaSuccess;  // the first error
  std::thread::id thread = {};      // if set, the only thread that may end it
};

struct Stream {
  int device = 0;
  std::deque<Item> items = {};
  std::shared_ptr<Capture> capture = {};
  std::vector<std::size_t> last = {};  // nodes on which the next one depends
};

struct Event {
  int device = 0;
  bool timed = true;
  std::shared_ptr<Point> latest = {};  // nullptr: never recorded
  // If the record was captured.
  std::shared_ptr<Capture> capture = {};
  std::vector<std::size_t> nodes = {};
};

class Device {
 public:
  explicit Device(int index);
  std::recursive_mutex mutex;
  Memory memory;
  std::vector<Stream*> streams;
  /// The stream of copies without a stream argument.
  Stream& default_stream();
  /// Time that events and kernels read. It advances by a microsecond per item and per node of a
  /// graph, by the simulated duration of work, and by idle time that a test simulates. So it does
  /// not depend on the load of the machine.
  std::chrono::nanoseconds clock{0};
  /// Additional time of each kernel.
  std::chrono::nanoseconds slow{0};
  /// After so many more kernels none begins, so that each stream stops at its next one.
  std::uint64_t kernels_left;

  void add(Stream& stream, Item item);
  /// Runs some of the queued work.
  void do_some();
  /// Whether no work is queued.
  bool idle() const;
  /// Runs work until `done` returns true. If that requires other GPUs or processes, also runs work
  /// of other GPUs. If it can never happen, ends the process with a message.
  void run_until(const std::function<bool()>& done);
  /// Whether a stream has work after that position, other than a single kernel.
  bool has_more_than(const Point& point) const;
  std::uint64_t random();
  /// Whether work at the front of a stream, or of a graph, can run.
  bool may_run(const Work& work) const { return !hangs_at(work) && (!work.ready || work.ready()); }
  bool hangs_at(const Work& work) const { return work.kernel && kernels_left == 0; }
  void run(const Work& work);

 private:
  enum class Ran : std::uint8_t { one, none, none_yet };
  Ran run_one();
  /// Whether nothing can run before an event or a message arrives. Checked before opening the
  /// memory, which is slow because all CPUs must be notified.
  bool stands_still() const;
  /// Chooses at random whether the streams alternate, or one runs far ahead of the others.
  void begin_turns() { turns_ = random() % 2 == 0 ? 1 : 16; }

  const int index_;
  std::uint64_t random_;
  Stream* default_ = nullptr;  // never destroyed
  std::uint64_t turns_ = 1;    // average number of items of a stream in a row
  std::size_t first_ = 0;      // index of the stream that is tried first
};

inline constexpr std::uint64_t kNever = ~std::uint64_t{0};

/// The clock of the GPU whose kernel this thread runs (trainer/ops/cuda/device_clock.h).
std::uint64_t time_ns();

int device_count();
Device& device(int index);
/// Counts that the host waits for all work of a GPU.
void count_wait();
/// Counts that the host has given work to a GPU.
void count_launch();
/// Runs some queued work of GPUs that no other thread uses.
void help_others();
/// Like fault_in_grid().
bool fault_in_memory(const void* address, FaultLine& line);

}  // namespace emulated_cuda

// For tests, by the module's symbols.
extern "C" {
/// Each kernel of the GPU takes `ns` longer, by the GPU's clock.
void sortie_emulated_slow(int gpu, std::uint64_t ns);
/// After `kernels` more kernels the GPU hangs: none begins. kNever = it goes on.
void sortie_emulated_hang(int gpu, std::uint64_t kernels);
/// `ns` pass on the GPU's clock, in which it has nothing to do.
void sortie_emulated_idle(int gpu, std::uint64_t ns);
}
