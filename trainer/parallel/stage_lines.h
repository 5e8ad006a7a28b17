// The groups that messages between the stages of a pipeline use.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// If tensors are sent directly between GPUs, each ordered pair of neighbouring stages has a
/// separate group and thus a separate stream: a message waits on the GPU for its receiver and must
/// not delay anything else, in particular no message in the other direction. Otherwise all messages
/// use the group of the stages.
class StageLines {
 public:
  /// Collective over `stages`, the stages of one model, which must outlive it.
  explicit StageLines(Communicator& stages);

  /// Whether messages go directly between GPUs. A receive then occupies the GPU from the time it is
  /// posted, and a send until its receive is posted.
  bool direct() const { return direct_; }
  Communicator::Handle send(const Tensor& values, int to, const Event& ready);
  Communicator::Handle receive(const Tensor& values, int from, const Event& ready);
  /// A group, and the other stage's rank in it.
  struct End {
    Communicator& group;
    int peer;
  };
  End to(int stage) { return end(stages_.rank(), stage, stage); }
  End from(int stage) { return end(stage, stages_.rank(), stage); }

 private:
  End end(int from, int to, int peer);

  Communicator& stages_;
  bool direct_ = false;
  std::map<std::pair<int, int>, std::unique_ptr<Communicator>> lines_;  // by (from, to)
};

}  // namespace sortie::trainer
