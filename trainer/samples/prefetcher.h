// Prefetcher: reads the next micro-batches on a separate thread while the current one is trained.
#pragma once

#include <memory>

#include "trainer/samples/sample_source.h"

namespace sortie::trainer {

/// The samples that a rank reads: `rows` samples from `first` on, then as many from `first` +
/// `stride` on, and so on.
struct ReadingCourse {
  std::int64_t first = 0;
  std::int64_t stride = 1;
  std::int64_t rows = 1;
  std::int64_t length = 1;  // tokens of a sample
  /// Micro-batches from this sample on are read only when next() requests them: training ends here.
  std::int64_t end = 0;
  std::size_t ahead = 2;  // micro-batches kept ready, at least 1
};

class Prefetcher {
 public:
  /// Starts to read at once. `source` must outlive this object and must not be used elsewhere
  /// meanwhile.
  Prefetcher(SampleSource& source, const ReadingCourse& course);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// Returns the next micro-batch: tokens and targets [rows, length]. `sample` is its first sample,
  /// which must be the next one of the course. Blocks until it is read. An error of the source is
  /// returned with the micro-batch to which it belongs and with every later one; an exception is
  /// rethrown.
  Result<> next(std::int64_t sample, std::span<std::int32_t> tokens,
                std::span<std::int32_t> targets);

  /// Returns the seconds that next() has blocked since the previous call of this function.
  double take_waited_seconds();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sortie::trainer
