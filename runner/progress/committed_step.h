// The step of the last checkpoint of a program that reports no events: the first number of a file
// (recovery.progress_file). The file may lie on a file system that hangs, so it is read by a child.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sortie::runner {

/// The first number of a text; nothing where there is none, or it has more than 18 digits.
std::optional<std::uint64_t> first_number(std::string_view text);

class CommittedStep {
 public:
  /// `path` may be empty: nothing is ever known then.
  CommittedStep(boost::asio::io_context& io, std::string path)
      : path_(std::move(path)), answer_(io) {}
  CommittedStep(const CommittedStep&) = delete;
  CommittedStep& operator=(const CommittedStep&) = delete;

  /// Begins to read the file, unless it is being read. Returns the child's pid, to be reaped by
  /// who waits for children; -1 without one. A child that hangs in the kernel stays the only one,
  /// and is killed with this process.
  pid_t look();
  /// What the file said last.
  std::optional<std::uint64_t> step() const { return step_; }

 private:
  void take_answer();

  const std::string path_;
  boost::asio::posix::stream_descriptor answer_;
  std::optional<std::uint64_t> step_;
};

}  // namespace sortie::runner
