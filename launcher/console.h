// Console: everything a person sees. Ranks' lines with a prefix, the step display, messages. Writes
// happen on a thread of its own through a bounded queue: a slow terminal delays nothing.
#pragma once

#include <condition_variable>
#include <cstdio>
#include <deque>
#include <map>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <thread>

#include "common/wire/message.h"

namespace sortie::launcher {

/// Text that can not take over a terminal: control bytes become visible (^X), UTF-8 stays, invalid
/// bytes become U+FFFD. Tabs stay.
std::string printable(std::string_view bytes);

/// "1.23M", "45.6k", "512".
std::string short_number(double value);
/// "1h02m", "3m05s", "42s".
std::string short_time(double seconds);
/// One aligned line for a {"type":"step"} event.
std::string step_line(const nlohmann::json& event);

class Console {
 public:
  struct Style {
    bool terminal = false;  // rewrite the status line in place
    bool color = false;
    bool quiet = false;  // no step display, no notes
  };
  /// From the process: isatty, NO_COLOR, TERM.
  static Style detect();

  explicit Console(Style style);
  ~Console();  // flushes, bounded by two seconds

  /// Bytes of a rank: whole lines are shown as "[rank host] line"; a partial line waits for its
  /// rest (up to 64 KiB). '\r' progress lines: the last state is shown.
  void output(std::uint32_t rank, std::string_view host, wire::Stream stream,
              std::string_view bytes);
  /// The rank is gone: shows what is left of its last line.
  void end_of_rank(std::uint32_t rank, std::string_view host);
  /// A trainer's event for the display.
  void event(const nlohmann::json& event);
  /// A line of Sortie's own, to stderr.
  void message(std::string_view text);
  void error(std::string_view text);
  /// To stdout, as it is.
  void result(std::string_view text);

  std::size_t dropped_lines() const;

 private:
  struct Partial {
    std::string text;
  };
  void line(std::uint32_t rank, std::string_view host, wire::Stream stream, std::string_view text);
  void enqueue(std::FILE* to, std::string text, bool must_show);
  void show_status(std::string line);
  void run();

  const Style style_;
  std::map<std::pair<std::uint32_t, wire::Stream>, Partial> partials_;
  double last_step_shown_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::FILE*, std::string>> queue_;
  std::size_t queued_bytes_ = 0, dropped_ = 0;
  std::string status_;  // the line kept at the bottom of a terminal
  bool status_changed_ = false;
  bool stop_ = false, idle_ = true;
  std::jthread writer_;
};

}  // namespace sortie::launcher
