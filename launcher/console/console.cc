#include "launcher/console/console.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "common/base/log.h"
#include "launcher/console/output_options.h"
#include "launcher/run/run_folder.h"
#include "launcher/view/training_text.h"

namespace sortie::launcher {
namespace {
constexpr std::size_t kMaxPartialBytes = 64u << 10;
constexpr std::size_t kTorrentBytes = 8u << 10;
constexpr double kLiveSeconds = 0.1;  // minimum time between updates of the status line
}  // namespace

void init_log(std::string_view log_level) {
  log::init("sortie", output_options().verbose ? log::Level::debug : log::level_named(log_level));
}

bool use_color(bool terminal) {
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0' ? std::string_view(value) : std::string_view();
  };
  if (output_options().no_color || !set("NO_COLOR").empty()) return false;
  const std::string_view force = set("CLICOLOR_FORCE");
  return terminal || (!force.empty() && force != "0");
}

Console::Style Console::detect() {
  Style style;
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::string_view(term) == "dumb" || *term == '\0';
  style.terminal = ::isatty(style.err) == 1 && !dumb;
  style.color_err = use_color(style.terminal);
  style.color_out = use_color(::isatty(style.out) == 1 && !dumb);
  style.quiet = output_options().quiet;
  return style;
}

Console::Console(Style style)
    : style_(style),
      dropped_(std::make_shared<std::size_t>(0)),
      writer_(std::make_shared<ConsoleWriter>(style.out, style.err, style.terminal,
                                              style.queue_bytes)) {}

Console::Console(const Console& of_run, std::string site, bool bottom)
    : style_([&] {
        Style style = of_run.style_;
        style.terminal = style.terminal && bottom;
        return style;
      }()),
      dropped_(of_run.dropped_),
      site_(std::move(site) + " "),
      writer_(of_run.writer_) {}

Console::Source& Console::source(std::uint32_t rank, std::string_view host, wire::Stream stream) {
  const auto [it, fresh] = sources_.try_emplace({rank, stream});
  std::string& prefix = it->second.prefix;
  if (!fresh || style_.prefix == Prefix::none) return it->second;
  prefix = style_.prefix == Prefix::host ? fmt::format("[{}{}]", site_, host)
                                         : fmt::format("[{}{} {}]", site_, rank, host);
  if (stream == wire::Stream::out ? style_.color_out : style_.color_err)
    prefix = fmt::format("\x1b[2m{}\x1b[0m", prefix);
  prefix += ' ';
  return it->second;
}

void Console::line(const Source& source, wire::Stream stream, std::string_view text) {
  std::string shown = source.prefix;
  shown += shown_line(text);
  shown += '\n';
  const auto to = stream == wire::Stream::out ? ConsoleWriter::To::out : ConsoleWriter::To::err;
  if (!writer_->write(to, shown, false)) ++*dropped_;
}

/// Drops the lines that end in `bytes`; returns the rest after the last newline.
std::string_view Console::pass_over(Source& source, std::string_view bytes) {
  const auto last = bytes.rfind('\n');
  source.partial.clear();
  if (last == bytes.npos) {  // part of a line: its rest may be shown
    ++*dropped_;
    return {};
  }
  *dropped_ += static_cast<std::size_t>(std::ranges::count(bytes, '\n'));
  return bytes.substr(last + 1);
}

void Console::output(std::uint32_t rank, std::string_view host, wire::Stream stream,
                     std::string_view bytes) {
  if (!style_.ranks) return;
  Source& from = source(rank, host, stream);
  if (bytes.size() >= kTorrentBytes && writer_->backlog() > style_.queue_bytes / 2)
    bytes = pass_over(from, bytes);
  while (!bytes.empty()) {
    const auto end = bytes.find('\n');
    if (end == bytes.npos) {
      from.partial.append(bytes);
      if (from.partial.size() >= kMaxPartialBytes) {
        line(from, stream, from.partial);
        from.partial.clear();
      }
      return;
    }
    if (from.partial.empty()) {
      line(from, stream, bytes.substr(0, end));
    } else {
      from.partial.append(bytes.substr(0, end));
      line(from, stream, from.partial);
      from.partial.clear();
    }
    bytes.remove_prefix(end + 1);
  }
}

void Console::end_of_rank(std::uint32_t rank) {
  for (const wire::Stream stream : {wire::Stream::out, wire::Stream::err}) {
    const auto it = sources_.find({rank, stream});
    if (it == sources_.end()) continue;
    if (!it->second.partial.empty()) line(it->second, stream, it->second.partial);
    sources_.erase(it);
  }
}

void Console::event(const nlohmann::json& event) {
  const auto known = training::read_event(event);
  if (!known) return;
  const double now = unix_time();
  training_.take(*known, now);
  if (training_.done) return progress("");
  if (std::holds_alternative<training::StepEvent>(*known) && now >= training_shown_ &&
      now - training_shown_ < kLiveSeconds)
    return;
  training_shown_ = now;
  progress(site_ + printable(live_line(training_, now)));
}

void Console::progress(std::string text) {
  if (style_.terminal && !style_.quiet) writer_->status(std::move(text));
}

void Console::message(std::string_view text) {
  if (style_.quiet) return;
  if (!writer_->write(ConsoleWriter::To::err, site_ + printable_lines(text) + "\n", true))
    ++*dropped_;
}

void Console::say_dropped_lines(std::string_view run_id) {
  if (dropped_lines() > 0)
    message(fmt::format("{} lines of output were not shown; `sortie logs {}` has them",
                        dropped_lines(), run_id));
}

void Console::plain(std::string_view text) {
  if (!writer_->write(ConsoleWriter::To::out, text, false)) ++*dropped_;
}

void Console::error(std::string_view text) {
  const std::string shown = site_ + printable_lines(text);
  if (!writer_->write(ConsoleWriter::To::err,
                      (style_.color_err ? fmt::format("\x1b[31m{}\x1b[0m", shown) : shown) + "\n",
                      true))
    ++*dropped_;
}

}  // namespace sortie::launcher
