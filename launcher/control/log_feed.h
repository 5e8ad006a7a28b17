// LogFeed: what ranks have written and go on to write, read from the files of the run folder.
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

  /// The logs of `ranks` (empty: all). `record` must outlive the feed.
  LogFeed(const RunRecord& record, const std::set<std::uint32_t>& ranks, Sink sink);

  /// From now on: what is there already is passed over.
  void skip_to_end();
  /// All that is there, or what came since then, in the order in which it came.
  void replay(std::optional<std::int64_t> since_ms);

  /// For poll(): readable when a log may have grown (-1: no notices here; look every now and then).
  int fd() const { return notices_.get(); }
  /// Hands out what is new, up to a few MiB; true when there may be more. With `everything`, also
  /// of logs that no notice has come for.
  bool take(bool everything);

 private:
  struct Log {
    const std::string* host;
    std::uint64_t position = 0;
    bool grown = true;
  };
  std::string path(const StreamKey& key) const;
  std::uint64_t size(const StreamKey& key) const;
  /// Hands out [position, end) of a log in pieces; returns where it got to.
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
