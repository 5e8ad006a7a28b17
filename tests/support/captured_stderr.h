// CapturedStderr: what this process writes to stderr, for tests of log lines.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "common/base/fd.h"
#include "tests/support/temp_dir.h"

namespace sortie::test {

/// From construction to destruction, stderr of the whole process goes to a file.
class CapturedStderr {
 public:
  CapturedStderr()
      : before_(::dup(STDERR_FILENO)),
        file_(::open(path().c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600)) {
    REQUIRE(before_);
    REQUIRE(file_);
    ::dup2(file_.get(), STDERR_FILENO);
  }
  ~CapturedStderr() { ::dup2(before_.get(), STDERR_FILENO); }
  CapturedStderr(const CapturedStderr&) = delete;
  CapturedStderr& operator=(const CapturedStderr&) = delete;

  std::string text() const { return read_text(path()); }

 private:
  std::string path() const { return dir_.str("stderr"); }

  const ScopedTempDir dir_;
  const Fd before_, file_;
};

}  // namespace sortie::test
