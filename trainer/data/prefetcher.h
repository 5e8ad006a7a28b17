// Prefetcher: reads the next batch on its own thread while the current one is in use.
#pragma once

#include <memory>

#include "trainer/data/dataset.h"

namespace sortie::trainer {

/// Gives exactly the batches that Dataset::read would give one after another. The dataset must
/// outlive it and must not be used by others meanwhile.
class Prefetcher {
 public:
  /// `first` names the first batch; each next one starts dp_size * rows samples later.
  Prefetcher(Dataset& dataset, const BatchSlice& first);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// Waits for the batch; it stays valid until the next call. After an error every call repeats it.
  Result<const Batch*> next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sortie::trainer
