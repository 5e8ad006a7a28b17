// Sums gradients over the data-parallel ranks in buckets, while the backward pass still runs.
#pragma once

#include <memory>
#include <vector>

#include "trainer/nn/parameter.h"
#include "trainer/ops/copy.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

class GradientReducer {
 public:
  /// Cuts the flat gradient buffer into buckets of about `bucket_elements`, at parameter borders.
  /// All arguments must outlive the reducer.
  GradientReducer(ParameterStore& store, Communicator& communicator, std::int64_t bucket_elements);

  /// Before the backward pass of the last micro-batch: from now on a bucket is reduced as soon as
  /// the gradients in it are final. Buckets go out in index order, on every rank the same.
  void begin();
  /// Makes progress; cheap. Called between ops.
  void poll();
  /// After the backward pass: sends what is left (parameters that had no use) and waits for
  /// everything.
  void finish();

  std::size_t bucket_count() const { return buckets_.size(); }
  /// Buckets that were complete before finish() had to wait, in the last step.
  std::size_t overlapped_buckets() const { return overlapped_; }

 private:
  struct Bucket {
    std::int64_t begin = 0, end = 0;  // elements of the flat buffer
    int parameters = 0, missing = 0;
    std::unique_ptr<ops::HostAccess<float>> values;  // while the handle is there
    std::unique_ptr<CollectiveHandle> handle;
  };
  void issue_ready();

  ParameterStore& store_;
  Communicator& communicator_;
  std::vector<Bucket> buckets_;
  std::size_t next_ = 0;        // first bucket not issued
  std::size_t first_open_ = 0;  // first bucket not known to be done
  std::size_t overlapped_ = 0;
};

}  // namespace sortie::trainer
