// PeerInquiry: how a rank asks the other ranks of a run a question while their own threads, and the
// connections that belong to these, wait in a collective (wait_question.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sortie::trainer {

/// The ranks of a run answer one question, the first: what ranks wait in vain for at the same time
/// has one cause, and the failure of the rank that asks ends the job. Functions throw nothing.
class PeerInquiry {
 public:
  /// Answers the question of another rank, within about a second.
  using Answer = std::function<std::string(const std::string& question)>;
  /// Makes the conclusion from the answers, by rank; nullopt where none came in time, and for this
  /// rank.
  using Conclude =
      std::function<std::string(const std::vector<std::optional<std::string>>& answers)>;
  struct Conclusion {
    std::string question;  // the one that was asked first
    std::string text;
  };

  virtual ~PeerInquiry() = default;
  /// Answers questions of other ranks from now on, on another thread. Called once.
  virtual void start(Answer answer) = 0;
  /// After this `answer` is not called. Idempotent.
  virtual void stop() = 0;
  /// Asks all ranks, and returns `conclude` of their answers. If another rank has asked before,
  /// returns that rank's question and conclusion. nullopt if nothing can be found out. Blocks for a
  /// few seconds at most, until all ranks have answered. Thread-safe.
  virtual std::optional<Conclusion> ask(const std::string& question, const Conclude& conclude) = 0;
};

/// What a rank knows of the run, for messages about other ranks. All members are optional.
struct RunPlace {
  std::string host = {};                       // of this rank, as messages name it
  std::shared_ptr<PeerInquiry> inquiry = {};   // nullptr: other ranks can not be asked
  std::function<std::string()> position = {};  // in training, "step 12, data"; thread-safe
};

}  // namespace sortie::trainer
