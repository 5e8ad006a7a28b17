// ExecutionContext: everything an op needs besides its tensors. One per rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "trainer/tensor/allocator.h"
#include "trainer/tensor/stream.h"
#include "trainer/tensor/tensor.h"

namespace sortie::trainer {

namespace ops {
class Backend;
}

struct CpuFacts {
  std::string model;     // "AMD EPYC ..."
  std::string isa;       // widest set that oneDNN uses here: "avx512_core_bf16", "avx2" ...
  bool multiplies_bf16;  // bf16 products in hardware (AVX-512-BF16 or AMX)
  bool amx;
};
CpuFacts cpu_facts();

class ExecutionContext {
 public:
  /// A context of `device` with `threads` compute threads (OpenMP and oneDNN) for this process.
  explicit ExecutionContext(int threads, Device device = {});
  ~ExecutionContext();

  Device device() const { return allocator_.device(); }
  Allocator& allocator() { return allocator_; }
  int threads() const { return threads_; }
  /// Returns an uninitialised tensor. On a guarded device it is filled with NaN (255 for integers),
  /// so that tests detect ops that read memory before it is written. SORTIE_DEBUG_MEMORY=1 does the
  /// same on the CPU and on GPUs.
  Tensor empty(DType dtype, Shape shape) {
    Tensor tensor = Tensor::empty(allocator_, dtype, shape);
    if (spoil_) spoil_(tensor);
    return tensor;
  }
  Tensor zeros(DType dtype, Shape shape);

  /// Called by ops between pieces of long work so that communication makes progress.
  void poll() {
    if (poll_ && !captures_) poll_();
  }
  void set_poll(std::function<void()> poll) { poll_ = std::move(poll); }

  /// True if ops keep rearranged copies of a weight until the weight changes; false if only until
  /// the product is done. Worth its memory if a weight is multiplied more than once between
  /// changes.
  bool keeps_packed_weights() const { return keeps_packed_weights_; }
  void keep_packed_weights(bool keep) { keeps_packed_weights_ = keep; }

  /// The backend that computes. The fronts of ops call it through ops/dispatch.h.
  ops::Backend& backend() { return *backend_; }
  /// How the front of an op calls the backend: directly; with the guarded memory opened around the
  /// call (guarded and meta devices); or later, from a queue.
  enum class Dispatch : std::uint8_t { direct, guarded, deferred };
  Dispatch dispatch() const { return dispatch_; }

  /// Floating-point operations of all requested products, 2 M N K each. Training attention counts
  /// only the keys that the causal mask and the window leave; attention_cached() counts all keys. A
  /// backward pass that recomputes subtracts the operations that it repeats.
  std::int64_t flop() const { return flop_; }
  void count_flop(std::int64_t count) { flop_ += count; }

  /// The stream that ops are added to. with_stream() changes it for the lifetime of the returned
  /// scope. On a GPU, the entered stream first waits for all work that the previous stream has been
  /// given so far, because that work may still use memory that is reused. The end of the scope
  /// waits for nothing: if work of the entered stream uses memory that is freed, the caller must
  /// make the previous stream wait for it.
  StreamKind stream() const { return stream_; }
  class StreamScope {
   public:
    StreamScope(ExecutionContext& context, StreamKind stream)
        : context_(context), before_(std::exchange(context.stream_, stream)) {
      context_.stream_entered(before_);
    }
    ~StreamScope() { context_.stream_ = before_; }
    StreamScope(const StreamScope&) = delete;
    StreamScope& operator=(const StreamScope&) = delete;

   private:
    ExecutionContext& context_;
    StreamKind before_;
  };
  [[nodiscard]] StreamScope with_stream(StreamKind stream) { return {*this, stream}; }
  /// record() returns an event at the current end of the current stream. wait() makes later work of
  /// the current stream wait for an event.
  Event record() { return streams_ ? streams_->record(stream_) : Event(); }
  void wait(const Event& event) {
    if (streams_) streams_->wait(stream_, event);
  }
  /// Makes later work of the current stream wait for work outside of the streams. If the device
  /// computes in the caller's thread, blocks until that work is complete.
  void wait(std::shared_ptr<Awaited> awaited) {
    if (streams_)
      streams_->wait(stream_, std::move(awaited));
    else
      awaited->wait();
  }
  /// Blocks until all streams have completed their work.
  void synchronize();
  /// True if work is asynchronous to the host, so that reading a value blocks until it is computed.
  bool runs_beside_host() const { return streams_ != nullptr; }

  /// Defers all ops from now on: they run late, the streams in a random order (tests). CPU only,
  /// once.
  void defer(std::uint64_t seed);
  /// Adds work to the current stream of a deferred context. For ops/dispatch.h.
  void enqueue(std::function<void()> op);
  /// Set while work is captured (RepeatedWork). poll() is then a no-op, because a capture does not
  /// allow queries of pending operations.
  void set_captures(bool captures) { captures_ = captures; }
  /// The device's streams; nullptr if ops run in the caller's thread at the time of the call.
  Streams* streams() { return streams_.get(); }

 private:
  void stream_entered(StreamKind before);

  int threads_;
  bool keeps_packed_weights_ = true;
  bool captures_ = false;
  Dispatch dispatch_ = Dispatch::direct;
  StreamKind stream_ = StreamKind::compute;
  std::int64_t flop_ = 0;
  Allocator allocator_;
  std::function<void()> poll_;
  std::function<void(Tensor& tensor)> spoil_;  // fills what empty() returns; may be empty
  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<Streams> streams_;  // destroyed first: its work uses the members above
  WorkQueues* queues_ = nullptr;      // streams_ of a deferred context, else nullptr
};

}  // namespace sortie::trainer
