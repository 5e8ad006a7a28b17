// What the data commands print.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "common/base/result.h"
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

/// Prints the error of a failed command to stderr and gives the exit code.
int report_error(std::string_view command, const Result<>& result);

/// "1.5 GB", "312 B": decimal units.
std::string human_bytes(std::uint64_t bytes);

}  // namespace sortie::trainer
