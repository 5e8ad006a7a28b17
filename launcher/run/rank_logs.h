// RankLogs: what ranks write, a file per rank and stream, and two indexes of it.
//
//   logs/rank-N.out, .err   the bytes
//   logs/times              "MS RANK STREAM OFFSET": what follows in that file from OFFSET on came
//                           at that time (ms since 1970) or later; at most once a second and file
//   logs/gaps               "RANK STREAM OFFSET MARK LOST": LOST bytes could not be written (a full
//                           disk); at OFFSET stands a line of MARK bytes that says so
//
// Used by one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/wire/message.h"
#include "launcher/run/line_file.h"

namespace sortie::launcher {

using StreamId = std::pair<std::uint32_t, wire::Stream>;  // rank and stream

/// "<run>/logs/rank-3.out".
std::filesystem::path rank_log_path(const std::filesystem::path& run, StreamId id);

/// How far the file of a stream goes.
struct LogEnd {
  std::uint64_t file_bytes = 0;    // its size
  std::uint64_t stream_bytes = 0;  // what the rank had written by then: other by the gaps
};
LogEnd read_log_end(const std::filesystem::path& run, StreamId id);

class RankLogs {
 public:
  explicit RankLogs(std::filesystem::path run);

  /// Where the file of a stream is to go on, when that is not its end: set before its first append.
  void begin_at(StreamId id, std::uint64_t file_offset);
  /// Error: not all of it was written. What is missing is counted, and marked in the file before
  /// the next bytes that can be written.
  Result<> append(StreamId id, std::string_view bytes);
  /// Tries to write what waits for the indexes.
  void flush();
  /// Marks the gaps at the end of files.
  void finish();

  std::uint64_t lost_bytes() const { return lost_bytes_; }

 private:
  struct Log {
    bool opened = false;
    std::uint64_t end = 0;       // of the file
    std::uint64_t lost = 0;      // bytes that belong there and are not
    std::string why;             // they are lost
    std::int64_t marked_ms = 0;  // of the last line in logs/times
  };
  Result<> open(StreamId id, Log& log, Fd*& file);
  Result<> mark_gap(StreamId id, Log& log, int file);
  void note_time(StreamId id, Log& log);

  std::filesystem::path run_;
  LineFile times_, gaps_;
  std::map<StreamId, Fd> files_;  // those in use: two per rank may be more than a process may open
  std::map<StreamId, Log> logs_;
  std::uint64_t lost_bytes_ = 0;
};

}  // namespace sortie::launcher
