// Console: everything that the user sees: ranks' lines with a prefix, the status line, messages.
// Output goes through a ConsoleWriter, so a slow terminal delays nothing.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/printable.h"
#include "common/base/quantity.h"
#include "common/wire/message.h"
#include "launcher/console/console_writer.h"
#include "launcher/view/training_view.h"

namespace sortie::launcher {

/// Returns `line` as a terminal finally shows it: of a progress line the last state; printable.
std::string shown_line(std::string_view line);

/// Parses an event of a rank: a JSON object with a type and limited nesting. nullopt if it is none.
std::optional<nlohmann::json> parse_event(std::string_view line);

/// Returns "[rank host] text" or "[site rank host] text" with a newline; the text is made
/// printable. Of a progress line only the part after the last '\r' is shown.
std::string rank_line(std::uint32_t rank, std::string_view host, std::string_view text, bool color,
                      std::string_view site = "");

class Console {
 public:
  /// Prefix of a rank's line.
  enum class Prefix { rank_and_host, host, none };
  struct Style {
    bool terminal = false;  // err is a terminal: rewrite the status line in place
    bool color_out = false, color_err = false;
    bool ranks = true;   // show the output of ranks
    bool quiet = false;  // no messages, no status line; only errors and ranks' output
    int out = 1, err = 2;
    Prefix prefix = Prefix::rank_and_host;
    std::size_t queue_bytes = 4u << 20;  // queued output; more is dropped
  };
  /// From isatty, TERM, and output_options.h.
  static Style detect();

  /// The destructor flushes for at most two seconds.
  explicit Console(Style style);
  /// Console of one site of a run, on the same terminal; each line begins with the name of the
  /// site. `bottom`: may show the status line.
  Console(const Console& of_run, std::string site, bool bottom);

  /// Shows output of a rank. Whole lines are shown as "[rank host] line"; a partial line waits for
  /// its rest (up to 64 KiB). Of '\r' progress lines the last state is shown. While the queue is
  /// more than half full, large pieces are dropped without looking at their lines: the other half
  /// is reserved for ranks that write little.
  void output(std::uint32_t rank, std::string_view host, wire::Stream stream,
              std::string_view bytes);
  /// The rank has ended: shows its last line if that has no newline.
  void end_of_rank(std::uint32_t rank);
  /// Takes an event of a rank (common/training/event.h) and updates the status line. Prints no
  /// line: ranks themselves print what should remain readable.
  void event(const nlohmann::json& event);
  /// Training state from all events so far. `known`: the state of an earlier supervisor of the run.
  const TrainingView& training() const { return training_; }
  void set_training(TrainingView known) { training_ = std::move(known); }
  /// Sets the status line, at the bottom of a terminal; "" removes it. No-op without a terminal.
  void progress(std::string text);
  /// Prints a message of Sortie to stderr.
  void message(std::string_view text);
  void error(std::string_view text);
  /// Prints text to stdout unchanged.
  void plain(std::string_view text);
  /// Sets the status line, also with `quiet`; "" removes it.
  void status(std::string text) { writer_->status(std::move(text)); }
  bool has_status() const { return style_.terminal; }
  /// Bytes not yet written.
  std::size_t backlog() const { return writer_->backlog(); }
  /// errno of a failed write to stdout (EPIPE: its reader is gone); 0 while it works.
  int out_error() const { return writer_->out_error(); }
  /// ConsoleWriter::flush().
  bool flush(std::chrono::milliseconds limit) { return writer_->flush(limit); }

  /// Number of lines dropped because the terminal was too slow, also by other consoles of the
  /// terminal: that of the run and those of its sites.
  std::size_t dropped_lines() const { return *dropped_; }
  /// Prints how many lines were dropped and how to see them; nothing if there are none.
  void say_dropped_lines(std::string_view run_id);

 private:
  struct Source {
    std::string prefix;   // of its lines
    std::string partial;  // an incomplete line
  };
  Source& source(std::uint32_t rank, std::string_view host, wire::Stream stream);
  void line(const Source& source, wire::Stream stream, std::string_view text);
  std::string_view pass_over(Source& source, std::string_view bytes);

  const Style style_;
  std::map<std::pair<std::uint32_t, wire::Stream>, Source> sources_;
  TrainingView training_;
  double training_shown_ = 0;             // Unix seconds of the last update of the status line
  std::shared_ptr<std::size_t> dropped_;  // shared as the writer is
  std::string site_;                      // followed by a space; empty = no site
  std::shared_ptr<ConsoleWriter> writer_;
};

}  // namespace sortie::launcher
