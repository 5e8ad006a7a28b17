// Receives the output of hosts. Several sinks may be active; each receives everything.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/wire/message.h"
#include "launcher/exec/outcome.h"

namespace sortie::launcher {

class ExecSink {
 public:
  virtual ~ExecSink() = default;
  /// The command has started on the host.
  virtual void started(std::size_t index, const std::string& host) = 0;
  virtual void output(std::size_t index, const std::string& host, wire::Stream stream,
                      std::string_view bytes) = 0;
  /// The host is done; its command may never have started.
  virtual void finished(std::size_t index, const std::string& host, const Outcome& outcome) = 0;
  /// First error of this sink, reported at the end; nullptr if there was none.
  virtual const Error* trouble() const { return nullptr; }
};

}  // namespace sortie::launcher
