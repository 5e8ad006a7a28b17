// Streams that are captured into graphs.
#pragma once

#include "tests/support/cuda/streams.h"

namespace emulated_cuda {

/// The error, which is cudaGetLastError()'s, too.
cudaError_t failed(cudaError_t error);

/// Adds to what the stream does, or what its capture writes down.
cudaError_t add_work(Stream& stream, Work work);

/// Of a stream that is captured; its GPU is locked.
cudaError_t capture_work(Stream& stream, Work work);
/// Where the stream, the event's record, or both are captured.
cudaError_t capture_wait(Stream& stream, const Event& event);

// The errors of calls that a capture does not survive.
cudaError_t refuse_in_capture(Capture& capture);
/// Of calls that may wait, and so not while this thread captures; else success.
cudaError_t refuse_in_captures();
/// Of questions about an event whose record was captured.
cudaError_t refuse_captured(const Event& event);

}  // namespace emulated_cuda
