// Where the output of hosts goes. Several sinks may take part; each is told everything.
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
  /// The command runs on the host.
  virtual void started(std::size_t index, const std::string& host) = 0;
  virtual void output(std::size_t index, const std::string& host, wire::Stream stream,
                      std::string_view bytes) = 0;
  /// Nothing more comes from the host; it may never have started.
  virtual void finished(std::size_t index, const std::string& host, const Outcome& outcome) = 0;
  /// What could not be kept, once; reported at the end.
  virtual const Error* trouble() const { return nullptr; }
};

}  // namespace sortie::launcher
