// RankLogs: the output of ranks, one file per rank and stream, and two index files.
//
//   logs/rank-N.out, .err   the bytes
//   logs/times              "MS RANK STREAM OFFSET": the bytes of that file from OFFSET on arrived
//                           at MS (ms since 1970) or later; at most one line a second and file
//   logs/gaps               "RANK STREAM OFFSET MARK LOST": LOST bytes could not be written (a full
//                           disk); at OFFSET the file has a note of MARK bytes that says so
//
// Not thread-safe.
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

/// The end of the log of a stream.
struct LogEnd {
  std::uint64_t file_bytes = 0;    // size of the file
  std::uint64_t stream_bytes = 0;  // bytes that the rank had written: file_bytes corrected for gaps
};
LogEnd read_log_end(const std::filesystem::path& run, StreamId id);

class RankLogs {
 public:
  explicit RankLogs(std::filesystem::path run);

  /// Sets the offset of the next write to the file of a stream, if that is not the end of the file.
  /// Must be called before the first append().
  void begin_at(StreamId id, std::uint64_t file_offset);
  /// Appends output. Error: not all bytes were written. Missing bytes are counted, and a note in
  /// the file marks the gap as soon as bytes can be written again.
  Result<> append(StreamId id, std::string_view bytes);
  /// Tries to write waiting lines of the index files.
  void flush();
  /// Writes the notes for gaps at the ends of files.
  void finish();

  std::uint64_t lost_bytes() const { return lost_bytes_; }

 private:
  struct Log {
    bool opened = false;
    std::uint64_t end = 0;       // of the file
    std::uint64_t lost = 0;      // bytes that are missing at `end`
    std::string why;             // they are missing
    std::int64_t marked_ms = 0;  // time of the last line in logs/times
  };
  Result<> open(StreamId id, Log& log, Fd*& file);
  Result<> mark_gap(StreamId id, Log& log, int file);
  void note_time(StreamId id, Log& log);

  std::filesystem::path run_;
  LineFile times_, gaps_;
  std::map<StreamId, Fd> files_;  // open files; bounded: two per rank may exceed the limit
  std::map<StreamId, Log> logs_;
  std::uint64_t lost_bytes_ = 0;
};

}  // namespace sortie::launcher
