// The streams of an emulated GPU. They run in whatever thread waits for one of them, late, and in
// any order that their events allow.
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

/// A place in a stream.
struct Point {
  std::atomic<bool> passed = false;
  std::chrono::nanoseconds when = {};  // it passed, by its GPU's clock
};

/// What a stream does at once. Each part may be empty.
struct Work {
  std::function<void()> run = {};
  std::function<bool()> ready = {};  // asked again and again, before it runs
  /// What says no, so that `ready` is not asked: nothing has come since it was the last time. Asked
  /// without the GPU's memory.
  std::function<bool()> has_news = {};
};

/// What was captured: nodes, each after those of lower numbers that it names.
struct Graph {
  struct Node {
    Work work;
    std::vector<std::size_t> after;
  };
  int device = 0;
  std::vector<Node> nodes;
};

/// One launch of a graph, which goes on node by node beside the other streams.
class GraphRun {
 public:
  explicit GraphRun(std::shared_ptr<const Graph> graph)
      : graph_(std::move(graph)), done_(graph_->nodes.size()), left_(done_.size()) {}
  /// Runs a node; which one is `random`'s choice. False when each one waits for something else.
  bool run_one(std::uint64_t random);
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
  bool foreign = false;  // `after` is of another GPU
};

/// Streams that write down what they are asked for.
struct Capture {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  std::vector<Stream*> streams;     // the first one began it; none once it has ended
  cudaError_t error = cudaSuccess;  // the first one
  std::thread::id thread = {};      // the only one that may end it
};

struct Stream {
  int device = 0;
  std::deque<Item> items = {};
  std::shared_ptr<Capture> capture = {};
  std::vector<std::size_t> last = {};  // nodes that the next one comes after
};

struct Event {
  int device = 0;
  bool timed = true;
  std::shared_ptr<Point> latest = {};  // null: never recorded
  // Of a record that was captured.
  std::shared_ptr<Capture> capture = {};
  std::vector<std::size_t> nodes = {};
};

class Device {
 public:
  explicit Device(int index);
  std::recursive_mutex mutex;
  Memory memory;
  std::vector<Stream*> streams;
  /// The one of copies without a stream.
  Stream& default_stream();
  /// What events read. It stands still but for a microsecond of each item, and what work adds that
  /// pretends to take long: no busy machine shows in it.
  std::chrono::nanoseconds clock{0};

  void add(Stream& stream, Item item);
  /// Some of what waits.
  void do_some();
  /// Whether nothing waits.
  bool idle() const;
  /// Runs what can, until `done` says so. Where that takes other GPUs or processes, they go on,
  /// too; where nothing ever can, the process ends with a message.
  void run_until(const std::function<bool()>& done);
  /// Whether a stream has work behind that place in it.
  bool has_more_than(const Point& point) const;
  std::uint64_t random();

 private:
  enum class Ran : std::uint8_t { one, none, none_yet };
  Ran run_one();
  /// Nothing can run before an event, or what is sent, has come. To open the memory takes long, as
  /// all processors are told.
  bool stands_still() const;
  /// Either every stream has its turn now and then, or one goes on while others stay far behind.
  void begin_turns() { turns_ = random() % 2 == 0 ? 1 : 16; }

  const int index_;
  std::uint64_t random_;
  Stream* default_ = nullptr;  // for as long as the process
  std::uint64_t turns_ = 1;    // items of a stream, about
  std::size_t first_ = 0;      // stream that is asked
};

int device_count();
Device& device(int index);
/// The host waits for all that a GPU was given.
void count_wait();
/// The host has given a GPU something to do.
void count_launch();
/// Some of what waits on GPUs that no other thread is at.
void help_others();
/// As run_grid's.
bool fault_in_memory(const void* address, FaultLine& line);

}  // namespace emulated_cuda
