// ExecutionContext: everything an op needs besides its tensors. One per rank.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "trainer/tensor/allocator.h"
#include "trainer/tensor/tensor.h"

namespace sortie::trainer {

struct CpuFacts {
  std::string model;     // "AMD EPYC ..."
  std::string isa;       // widest that oneDNN uses here: "avx512_core_bf16", "avx2" ...
  bool multiplies_bf16;  // bf16 products in hardware (AVX-512-BF16 or AMX)
  bool amx;
};
CpuFacts cpu_facts();

class ExecutionContext {
 public:
  /// `threads` compute threads (OpenMP and oneDNN) for this process.
  explicit ExecutionContext(int threads);
  ~ExecutionContext();

  Allocator& allocator() { return allocator_; }
  int threads() const { return threads_; }
  Tensor empty(DType dtype, Shape shape) { return Tensor::empty(allocator_, dtype, shape); }
  Tensor zeros(DType dtype, Shape shape) { return Tensor::zeros(allocator_, dtype, shape); }

  /// Called by ops between pieces of long work so that communication makes progress.
  void poll() {
    if (poll_) poll_();
  }
  void set_poll(std::function<void()> poll) { poll_ = std::move(poll); }

  /// Whether ops keep the copies of weights that they rearrange until the weights change (else
  /// until the product is done). Worth its memory where a weight is multiplied more than once in
  /// between.
  bool keeps_packed_weights() const { return keeps_packed_weights_; }
  void keep_packed_weights(bool keep) { keeps_packed_weights_ = keep; }

  /// Backend state (oneDNN engine, stream, primitive caches); defined and used by op *_cpu.cc files
  /// only.
  struct Backend;
  Backend& backend() { return *backend_; }

 private:
  int threads_;
  bool keeps_packed_weights_ = true;
  Allocator allocator_;
  std::function<void()> poll_;
  std::unique_ptr<Backend> backend_;
};

}  // namespace sortie::trainer
