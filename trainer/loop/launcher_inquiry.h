// LauncherInquiry: how ranks of `sortie run` ask each other when a collective between GPUs makes no
// progress: through the launcher's store, which does not depend on the ranks' own connections.
#pragma once

#include <optional>
#include <string>
#include <thread>

#include "trainer/metrics/launcher_store.h"
#include "trainer/metrics/progress_marks.h"
#include "trainer/parallel/peer_inquiry.h"

namespace sortie::trainer {

/// "step 12, forward"; "" before the first step.
std::string position_text(const ProgressMarks::Seen& seen);

/// Keys of the store, all of which keep their first value: "wait" is the question, and so elects
/// the rank that asks; "wait/3" is the answer of rank 3; "wait/found" is the conclusion.
class LauncherInquiry final : public PeerInquiry {
 public:
  /// `socket_path`: SORTIE_SOCKET.
  LauncherInquiry(std::string socket_path, int rank, int world_size);
  ~LauncherInquiry() override;
  LauncherInquiry(const LauncherInquiry&) = delete;
  LauncherInquiry& operator=(const LauncherInquiry&) = delete;

  void start(Answer answer) override;
  void stop() override;
  std::optional<Conclusion> ask(const std::string& question, const Conclude& conclude) override;

 private:
  /// Waits for the question and answers it. Runs on thread_.
  void listen(const Answer& answer);

  const std::string socket_path_;
  const int rank_, world_size_;
  std::optional<LauncherStore> listening_;
  std::thread thread_;
};

}  // namespace sortie::trainer
