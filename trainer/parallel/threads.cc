// Ranks as threads of one process: collectives testable without a launcher. Sums run in rank order.
#include <fmt/core.h>

#include <barrier>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "trainer/parallel/communicator.h"
#include "trainer/parallel/done_handle.h"

namespace sortie::trainer {
namespace {

/// What the ranks share: a slot per rank, published before the first barrier of a collective.
struct Shared {
  explicit Shared(int size) : sync(size), spans(static_cast<std::size_t>(size)) {}
  std::barrier<> sync;
  std::vector<std::span<std::byte>> spans;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(Shared& shared, int rank, int size)
      : shared_(shared), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string library() const override { return "threads"; }

  std::unique_ptr<CollectiveHandle> all_reduce_sum_async(std::span<float> values) override {
    reduce(values);
    return std::make_unique<DoneHandle>();
  }
  void all_reduce_sum(std::span<double> values) override { reduce(values); }
  void broadcast(std::span<std::byte> bytes, int root) override {
    publish(bytes);
    const auto source = shared_.spans[static_cast<std::size_t>(root)];
    if (rank_ != root) std::memcpy(bytes.data(), source.data(), bytes.size());
    shared_.sync.arrive_and_wait();
  }
  // One rank of a process can not end without the others: run_thread_ranks ends them.
  bool meet(std::chrono::milliseconds) override { return size_ == 1; }
  void abort(int exit_code) override {
    throw CommunicatorError(fmt::format("rank {} ended the job with {}", rank_, exit_code));
  }
  std::vector<std::string> all_gather(std::string_view text) override {
    std::string mine(text);
    publish(std::as_writable_bytes(std::span(mine)));
    std::vector<std::string> out;
    for (const auto& span : shared_.spans)
      out.emplace_back(reinterpret_cast<const char*>(span.data()), span.size());
    shared_.sync.arrive_and_wait();
    return out;
  }
  void barrier() override { shared_.sync.arrive_and_wait(); }

 private:
  void publish(std::span<std::byte> bytes) {
    shared_.spans[static_cast<std::size_t>(rank_)] = bytes;
    shared_.sync.arrive_and_wait();
  }
  template <class T>
  void reduce(std::span<T> values) {
    publish(std::as_writable_bytes(values));
    std::vector<T> sum(values.size(), T{0});
    for (const auto& span : shared_.spans) {
      const T* from = reinterpret_cast<const T*>(span.data());
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += from[i];
    }
    shared_.sync.arrive_and_wait();  // everyone has read before anyone writes
    std::memcpy(values.data(), sum.data(), values.size_bytes());
    shared_.sync.arrive_and_wait();
  }

  Shared& shared_;
  int rank_, size_;
};

}  // namespace

void run_thread_ranks(int size, const std::function<void(Communicator&)>& body) {
  Shared shared(size);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      ThreadCommunicator communicator(shared, rank, size);
      try {
        body(communicator);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
      shared.sync.arrive_and_drop();  // the others must not wait for a rank that is gone
    });
  threads.clear();
  if (first) std::rethrow_exception(first);
}

}  // namespace sortie::trainer
