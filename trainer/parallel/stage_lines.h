// What messages between the stages of a pipeline travel on.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Where tensors go from GPU to GPU, each ordered pair of neighbouring stages has a group of its
/// own, and so a stream: a message waits for its receiver, and must hold up nothing else, least of
/// all what comes the other way. Elsewhere messages go by the group of the stages.
class StageLines {
 public:
  /// Called by all stages of one model. `stages` outlives it.
  explicit StageLines(Communicator& stages);

  /// Whether a receive occupies the GPU from when it is posted on, and a send until it is.
  bool direct() const { return direct_; }
  Communicator::Handle send(const Tensor& values, int to, const Event& ready);
  Communicator::Handle receive(const Tensor& values, int from, const Event& ready);
  /// The group, and the other stage's number in it.
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
  std::map<std::pair<int, int>, std::unique_ptr<Communicator>> lines_;  // from, to: those of ours
};

}  // namespace sortie::trainer
