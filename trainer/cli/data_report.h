// What the data commands print.
#pragma once

#include <chrono>
#include <string_view>

#include "trainer/data/build.h"
#include "trainer/data/inspect.h"

namespace sortie::trainer {

/// Progress of a build on stderr (a rewritten line on a terminal, else one every ten seconds) and
/// its summary on stdout.
class BuildReporter {
 public:
  BuildReporter();
  void progress(const BuildProgress& progress);
  void end_progress();
  void summary(const BuildResult& result, const BuildOptions& options) const;

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point started_ = Clock::now();
  Clock::time_point shown_ = started_;
  bool terminal_;
  bool line_open_ = false;
};

/// `tokenizer` may be null: then ids are shown, not text.
void print_inspection(std::string_view prefix, const Inspection& inspection,
                      const Tokenizer* tokenizer, bool json);

}  // namespace sortie::trainer
