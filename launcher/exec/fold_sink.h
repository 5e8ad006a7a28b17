// --fold: collects the output of hosts until all are done; hosts with the same output and outcome
// are shown once. Memory: 16 KiB per stream of each host that runs or has unique output; the rest
// is in one temporary file. Outputs are compared by SHA-256.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/exec/sink.h"
#include "launcher/exec/spill_file.h"

struct evp_md_ctx_st;

namespace sortie::launcher {

class FoldSink : public ExecSink {
 public:
  /// `only_what_was_said`: omits hosts that are ok and printed nothing.
  explicit FoldSink(bool only_what_was_said = false);
  ~FoldSink() override;
  void started(std::size_t index, const std::string& host) override;
  void output(std::size_t index, const std::string& host, wire::Stream stream,
              std::string_view bytes) override;
  void finished(std::size_t index, const std::string& host, const Outcome& outcome) override;
  const Error* trouble() const override { return trouble_ ? &*trouble_ : nullptr; }

  /// Returns the report in pieces of about 64 KiB; nullopt after the last one. Groups are in the
  /// order of their first hosts; text is printable.
  std::optional<std::string> next_piece();

 private:
  /// Bytes of one stream; older ones are in the file.
  struct Text {
    struct Extent {
      std::uint64_t offset = 0, size = 0;
    };
    std::vector<Extent> extents;
    std::string tail;
    bool empty() const { return extents.empty() && tail.empty(); }
  };
  struct HashFree {
    void operator()(evp_md_ctx_st* hash) const;
  };
  struct Running {
    std::array<Text, 2> texts;  // out, err
    std::array<std::unique_ptr<evp_md_ctx_st, HashFree>, 2> hashes;
  };
  struct Group {
    std::vector<std::string> hosts;
    std::string reason;
    std::array<Text, 2> texts;
    std::size_t first = 0;  // index of its first host
  };
  struct Report {
    std::vector<const Group*> groups;
    std::size_t group = 0, text = 0, extent = 0;
    std::uint64_t offset = 0;
    bool headed = false;
    std::string line;  // incomplete line
  };

  void append(Text& text, std::string_view bytes);
  std::string next_bytes(const Text& text);
  void begin_report();

  const bool only_what_was_said_;
  SpillFile spill_;
  std::map<std::size_t, Running> running_;
  std::map<std::string, Group> groups_;  // by outcome and hashes
  std::optional<Error> trouble_;
  std::optional<Report> report_;
};

}  // namespace sortie::launcher
