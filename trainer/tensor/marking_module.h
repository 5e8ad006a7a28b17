// MarkingModule: the part of the device module that lets a stream write how far it is.
#pragma once

#include "trainer/tensor/device_module.h"
#include "trainer/tensor/stream_place.h"

namespace sortie::trainer {

class ExecutionContext;

/// Every module that load_cuda_module() loads is one.
class MarkingModule : public DeviceModule {
 public:
  /// Adds a mark to the current stream of a GPU's context: the stream writes it to `place` when all
  /// work before it is done. May be captured. `place` is in memory of host_block(), gets the marks
  /// of no other stream, and must outlive them.
  virtual void mark(ExecutionContext& context, StreamPlace& place, const StreamMark& mark) = 0;
};

/// The loaded module, like cuda_module().
inline MarkingModule& marking_module() {
  return static_cast<MarkingModule&>(cuda_module());
}

}  // namespace sortie::trainer
