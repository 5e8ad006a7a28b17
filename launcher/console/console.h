// Console: everything a person sees. Ranks' lines with a prefix, the step display, messages. What
// is shown goes through a ConsoleWriter: a slow terminal delays nothing.
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

/// A line as a terminal would end up showing it: of a progress line the last state; printable.
std::string shown_line(std::string_view line);

/// A rank's event: a JSON object with a type, whose nesting is as flat as events are; else nothing.
std::optional<nlohmann::json> parse_event(std::string_view line);

/// "[rank host] text" and a line end, with the text printable; what follows the last '\r' is what
/// shows of a progress line. With a site: "[site rank host] text".
std::string rank_line(std::uint32_t rank, std::string_view host, std::string_view text, bool color,
                      std::string_view site = "");

class Console {
 public:
  /// What stands before a rank's line.
  enum class Prefix { rank_and_host, host, none };
  struct Style {
    bool terminal = false;  // err is one: rewrite the status line in place
    bool color_out = false, color_err = false;
    bool ranks = true;   // show what ranks write
    bool quiet = false;  // no messages, no status line; errors and ranks' output stay
    int out = 1, err = 2;
    Prefix prefix = Prefix::rank_and_host;
    std::size_t queue_bytes =
        4u << 20;  // output that may wait for the terminal; then it is dropped
  };
  /// From the process: isatty, TERM, and output_options.h.
  static Style detect();

  /// Its end flushes, bounded by two seconds.
  explicit Console(Style style);
  /// What one site of a run says: on the same terminal, with the name of the site before each line.
  /// `bottom`: it may have the line at the bottom.
  Console(const Console& of_run, std::string site, bool bottom);

  /// Bytes of a rank: whole lines are shown as "[rank host] line"; a partial line waits for its
  /// rest (up to 64 KiB). '\r' progress lines: the last state is shown. When half of what may wait
  /// for the terminal does, torrents (bytes in large pieces) are passed over without a look at
  /// their lines: the other half is for those who say little.
  void output(std::uint32_t rank, std::string_view host, wire::Stream stream,
              std::string_view bytes);
  /// The rank is gone: shows what is left of its last line.
  void end_of_rank(std::uint32_t rank);
  /// A rank's event (common/training/event.h): moves the line at the bottom of a terminal. What is
  /// to stay readable a rank writes itself.
  void event(const nlohmann::json& event);
  /// What all events so far say; `known` are those of an earlier supervisor of the same run.
  const TrainingView& training() const { return training_; }
  void set_training(TrainingView known) { training_ = std::move(known); }
  /// What is going on, at the bottom of a terminal; "" ends it. Nothing where no terminal is.
  void progress(std::string text);
  /// A line of Sortie's own, to stderr.
  void message(std::string_view text);
  void error(std::string_view text);
  /// Text for stdout as it is.
  void plain(std::string_view text);
  /// The line at the bottom of a terminal; "" for none.
  void status(std::string text) { writer_->status(std::move(text)); }
  bool has_status() const { return style_.terminal; }
  /// Bytes that the terminal has not taken yet.
  std::size_t backlog() const { return writer_->backlog(); }
  /// Why stdout takes no more (EPIPE: nobody reads it), 0 while it does.
  int out_error() const { return writer_->out_error(); }

  /// Lines that were not shown, because the terminal was too slow.
  std::size_t dropped_lines() const { return dropped_; }

 private:
  struct Source {
    std::string prefix;   // of its lines
    std::string partial;  // the beginning of a line
  };
  Source& source(std::uint32_t rank, std::string_view host, wire::Stream stream);
  void line(const Source& source, wire::Stream stream, std::string_view text);
  std::string_view pass_over(Source& source, std::string_view bytes);

  const Style style_;
  std::map<std::pair<std::uint32_t, wire::Stream>, Source> sources_;
  TrainingView training_;
  double training_shown_ = 0;  // when, in seconds since 1970
  std::size_t dropped_ = 0;
  std::string site_;  // with a blank after it; empty = of no site
  std::shared_ptr<ConsoleWriter> writer_;
};

}  // namespace sortie::launcher
