// LogFeed: reads the existing and the growing logs of ranks from the run folder.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "launcher/control/log_index.h"
#include "launcher/control/run_record.h"

namespace sortie::launcher {

class LogFeed {
 public:
  struct Chunk {
    std::uint32_t rank;
    const std::string& host;
    wire::Stream stream;
    std::string_view bytes;
  };
  using Sink = std::function<void(const Chunk&)>;

  /// Feeds the logs of `ranks` (empty: all) to `sink`. `record` must outlive the feed.
  LogFeed(const RunRecord& record, const std::set<std::uint32_t>& ranks, Sink sink);

  /// Skips existing output.
  void skip_to_end();
  /// Feeds existing output (all, or since `since_ms`) in the order in which it arrived.
  void replay(std::optional<std::int64_t> since_ms);

  /// For poll(): readable if a log may have grown. -1: inotify is unavailable; call take()
  /// periodically.
  int fd() const { return notices_.get(); }
  /// Feeds new output, up to 1 MiB per log; returns true if there may be more. `everything`: also
  /// reads logs without an inotify event.
  bool take(bool everything);

 private:
  struct Log {
    const std::string* host;
    std::uint64_t position = 0;
    bool grown = true;
  };
  std::string path(const StreamKey& key) const;
  std::uint64_t size(const StreamKey& key) const;
  /// Feeds bytes [begin, end) of a log in pieces; returns the position reached.
  std::uint64_t hand_out(const StreamKey& key, const Log& log, std::uint64_t begin,
                         std::uint64_t end);
  void read_notices();

  const RunRecord& record_;
  Sink sink_;
  std::map<StreamKey, Log> logs_;
  Fd notices_;
  std::vector<char> buffer_;
};

}  // namespace sortie::launcher
