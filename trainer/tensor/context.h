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
  std::string isa;       // widest that oneDNN uses here: "avx512_core_bf16", "avx2" ...
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
  /// Uninitialised. Guarded memory is NaN (255 of integers) until it is written, so that tests find
  /// who reads what nobody has written; with SORTIE_DEBUG_MEMORY=1 that of the CPU and of GPUs,
  /// too.
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

  /// Whether ops keep the copies of weights that they rearrange until the weights change (else
  /// until the product is done). Worth its memory where a weight is multiplied more than once in
  /// between.
  bool keeps_packed_weights() const { return keeps_packed_weights_; }
  void keep_packed_weights(bool keep) { keeps_packed_weights_ = keep; }

  /// What computes. Fronts of ops reach it through ops/dispatch.h.
  ops::Backend& backend() { return *backend_; }
  /// How an op's front reaches the backend: a plain call; between opening and closing the guarded
  /// memory; or later, from a queue.
  enum class Dispatch : std::uint8_t { direct, guarded, deferred };
  Dispatch dispatch() const { return dispatch_; }

  /// Floating-point operations of the products that were asked for, 2 M N K each; of attention, of
  /// the keys that a causal mask and the window leave. A backward pass that recomputes takes back
  /// what it repeats.
  std::int64_t flop() const { return flop_; }
  void count_flop(std::int64_t count) { flop_ += count; }

  /// The stream that ops go to; with_stream() changes it while what it returns lives. On a GPU the
  /// stream that is entered first waits for what the one before has been given so far, which may
  /// still use memory that is handed out again. The other way round, who enters a stream has the
  /// one before wait for it, as far as it used memory that is let go.
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
  /// The current stream's end, and making the current stream wait for an event.
  Event record() { return streams_ ? streams_->record(stream_) : Event(); }
  void wait(const Event& event) {
    if (streams_) streams_->wait(stream_, event);
  }
  /// The same for what goes on beside the streams. Where the device computes in the caller's
  /// thread, that thread is the stream, and waits.
  void wait(std::shared_ptr<Awaited> awaited) {
    if (streams_)
      streams_->wait(stream_, std::move(awaited));
    else
      awaited->wait();
  }
  /// Until all streams have done their work.
  void synchronize();
  /// Work goes on beside the host: to read a value is to wait for it.
  bool runs_beside_host() const { return streams_ != nullptr; }

  /// From now on ops are done late, streams in a random order (tests).
  void defer(std::uint64_t seed);
  /// Of deferred contexts, for ops/dispatch.h: adds work to the current stream.
  void enqueue(std::function<void()> op);
  /// While work is captured (RepeatedWork) nothing that is under way may be asked: poll() does
  /// nothing.
  void set_captures(bool captures) { captures_ = captures; }
  /// The device's own; null where it computes in the caller's thread.
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
  std::function<void(Tensor& tensor)> spoil_;  // what empty() gives; by the backend
  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<Streams> streams_;  // what they hold goes first
  WorkQueues* queues_ = nullptr;      // the same, of a deferred context
};

}  // namespace sortie::trainer
