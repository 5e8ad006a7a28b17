// Prefetcher: reads the next micro-batches on a thread of its own while the current one is trained.
#pragma once

#include <memory>

#include "trainer/samples/sample_source.h"

namespace sortie::trainer {

/// What a rank reads: `rows` samples from `first` on, then as many from `first` + `stride` on, and
/// so forth.
struct ReadingCourse {
  std::int64_t first = 0;
  std::int64_t stride = 1;
  std::int64_t rows = 1;
  std::int64_t length = 1;  // tokens of a sample
  /// Micro-batches from here on are not read before they are asked for: training ends there.
  std::int64_t end = 0;
  std::size_t ahead = 2;  // micro-batches kept ready, at least 1
};

class Prefetcher {
 public:
  /// Reading begins at once. `source` must outlive the object; nobody else may use it meanwhile.
  Prefetcher(SampleSource& source, const ReadingCourse& course);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// The next micro-batch, tokens and targets [rows, length]; `sample` is its first and must be the
  /// one that the course has here. Waits for it where it is not ready. An error of the source comes
  /// with the micro-batch that it belongs to, and with every later one; an exception is rethrown.
  Result<> next(std::int64_t sample, std::span<std::int32_t> tokens,
                std::span<std::int32_t> targets);

  /// How long next() has waited for reading since the last call of this.
  double take_waited_seconds();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sortie::trainer
