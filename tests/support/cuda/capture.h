// Capturing streams into graphs.
#pragma once

#include "tests/support/cuda/streams.h"

namespace emulated_cuda {

/// Records `error` for cudaGetLastError() and returns it.
cudaError_t failed(cudaError_t error);

/// Appends work to the stream, or to the capture if the stream is captured.
cudaError_t add_work(Stream& stream, Work work);

/// Same, for a stream that is captured. The caller holds the GPU's lock.
cudaError_t capture_work(Stream& stream, Work work);
/// Makes the stream wait for the event, if the stream, the event's record, or both are captured.
cudaError_t capture_wait(Stream& stream, const Event& event);

// Errors of calls that invalidate a capture.
cudaError_t refuse_in_capture(Capture& capture);
/// For calls that may block: an error, and invalidation, if this thread captures; else success.
cudaError_t refuse_in_captures();
/// For queries of an event whose record was captured.
cudaError_t refuse_captured(const Event& event);

}  // namespace emulated_cuda
