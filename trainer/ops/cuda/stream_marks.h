// Marks that a stream writes to memory of the host.
#pragma once

#include <cuda_runtime.h>

#include "trainer/tensor/stream_place.h"

namespace sortie::trainer::ops::cuda {

/// Adds a kernel of one thread to the stream that writes the mark. `place` is in pinned memory of
/// the host.
void mark_place(cudaStream_t stream, StreamPlace& place, const StreamMark& mark);

}  // namespace sortie::trainer::ops::cuda
