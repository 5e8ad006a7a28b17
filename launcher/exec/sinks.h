// The sinks of `sortie exec`: the terminal, JSON lines, a folder.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "common/base/fd.h"
#include "launcher/console/console.h"
#include "launcher/exec/sink.h"

namespace sortie::launcher {

/// Prints "[host] line" immediately.
class LiveSink : public ExecSink {
 public:
  explicit LiveSink(Console& console) : console_(console) {}
  void started(std::size_t, const std::string&) override {}
  void output(std::size_t index, const std::string& host, wire::Stream stream,
              std::string_view bytes) override;
  void finished(std::size_t index, const std::string& host, const Outcome& outcome) override;

 private:
  Console& console_;
};

/// Prints one JSON object per line on stdout: start, started, output (one per line), exit, end.
/// README.md has the members.
class JsonSink : public ExecSink {
 public:
  JsonSink(Console& console, std::size_t hosts, const std::vector<std::string>& argv);
  void started(std::size_t index, const std::string& host) override;
  void output(std::size_t index, const std::string& host, wire::Stream stream,
              std::string_view bytes) override;
  void finished(std::size_t index, const std::string& host, const Outcome& outcome) override;
  void end(std::span<const HostOutcome> hosts, int exit_code);

 private:
  void line(const std::string& host, wire::Stream stream, std::string_view text, bool whole);

  Console& console_;
  std::map<std::pair<std::size_t, wire::Stream>, std::string> partials_;
};

/// Writes HOST.out and, if there is output on stderr, HOST.err, unmodified.
class FolderSink : public ExecSink {
 public:
  /// Creates the folder and its parents if missing.
  static Result<std::unique_ptr<FolderSink>> open(const std::filesystem::path& folder);
  void started(std::size_t index, const std::string& host) override;
  void output(std::size_t index, const std::string& host, wire::Stream stream,
              std::string_view bytes) override;
  void finished(std::size_t index, const std::string& host, const Outcome& outcome) override;
  const Error* trouble() const override { return trouble_ ? &*trouble_ : nullptr; }

 private:
  FolderSink() = default;
  Fd* file(std::size_t index, const std::string& host, wire::Stream stream);

  std::filesystem::path folder_;
  std::map<std::pair<std::size_t, wire::Stream>, Fd> files_;
  std::optional<Error> trouble_;
};

}  // namespace sortie::launcher
