#include "launcher/console/console.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "common/base/log.h"
#include "launcher/console/output_options.h"
#include "launcher/run/run_folder.h"

namespace sortie::launcher {
namespace {
constexpr std::size_t kMaxPartialBytes = 64u << 10;
constexpr std::size_t kTorrentBytes = 8u << 10;
constexpr double kPlainStepSeconds = 5.0;  // between step lines where no line can be rewritten
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
    : style_(style), writer_(style.out, style.err, style.terminal, style.queue_bytes) {}

Console::Source& Console::source(std::uint32_t rank, std::string_view host, wire::Stream stream) {
  const auto [it, fresh] = sources_.try_emplace({rank, stream});
  std::string& prefix = it->second.prefix;
  if (!fresh || style_.prefix == Prefix::none) return it->second;
  prefix = style_.prefix == Prefix::host ? fmt::format("[{}]", host)
                                         : fmt::format("[{} {}]", rank, host);
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
  if (!writer_.write(to, shown, false)) ++dropped_;
}

/// Nothing of the lines that end in here is shown; returns what comes after them.
std::string_view Console::pass_over(Source& source, std::string_view bytes) {
  const auto last = bytes.rfind('\n');
  source.partial.clear();
  if (last == bytes.npos) {  // a part of a line: its rest may be shown
    ++dropped_;
    return {};
  }
  dropped_ += static_cast<std::size_t>(std::ranges::count(bytes, '\n'));
  return bytes.substr(last + 1);
}

void Console::output(std::uint32_t rank, std::string_view host, wire::Stream stream,
                     std::string_view bytes) {
  if (!style_.ranks) return;
  Source& from = source(rank, host, stream);
  if (bytes.size() >= kTorrentBytes && writer_.backlog() > style_.queue_bytes / 2)
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

void Console::step(const nlohmann::json& event) {
  const std::string text = step_line(event);
  progress(text);
  const auto number = [&](const char* key) { return json_number(event, key); };
  const double now = unix_time();
  const bool edge =
      number("step") == 1 || number("step") == number("steps") || json_flag(event, "skipped");
  if (!edge && (style_.terminal || now - last_step_shown_ < kPlainStepSeconds)) return;
  last_step_shown_ = now;
  message(text);
}

void Console::event(const nlohmann::json& event) {
  const auto number = [&](const char* key) { return json_number(event, key); };
  const auto text = [&](const char* key) { return json_text(event, key); };
  const std::string type = text("type");
  if (type == "step") {
    step(event);
  } else if (type == "eval") {
    std::string sets;  // "loss/NAME" of each, where there are several
    for (const auto& [key, value] : event.items())
      if (key.starts_with("loss/"))
        sets += fmt::format("{}{} {:.4f}", sets.empty() ? "" : ", ", printable(key.substr(5)),
                            number(key.c_str()));
    message(fmt::format("step {:>6.0f}  validation loss {:.4f}{}", number("step"), number("loss"),
                        sets.empty() ? "" : " (" + sets + ")"));
  } else if (type == "checkpoint") {
    message(fmt::format("step {:>6.0f}  checkpoint {} ({}B in {:.1f} s)", number("step"),
                        text("path"), short_number(number("bytes")), number("seconds")));
  } else if (type == "start") {
    message(fmt::format(
        "training {} with {} parameters, {} on {} ({}), {:.0f} rank{} x {:.0f} thread{}, {:.0f} x "
        "{:.0f} tokens a step",
        text("architecture"), short_number(number("parameters")), text("precision"), text("cpu"),
        text("isa"), number("world_size"), number("world_size") == 1 ? "" : "s", number("threads"),
        number("threads") == 1 ? "" : "s", number("global_batch_size"), number("sequence_length")));
  } else if (type == "note") {
    message(text("text"));
  } else if (type == "done") {
    writer_.status("");
    // Without a loss no step was made: the run that is resumed had come to its end before.
    const bool trained = std::isfinite(number("loss"));
    std::string line =
        trained ? fmt::format("trained to step {:.0f} in {}, loss {:.4f}", number("step"),
                              short_time(number("seconds")), number("loss"))
                : fmt::format(
                      "step {:.0f} was the last one already, nothing was left to train; "
                      "raise trainer.train_iterations to go on",
                      number("step"));
    if (std::isfinite(number("validation_loss")))
      line += fmt::format(", validation loss {:.4f}", number("validation_loss"));
    line += fmt::format(", peak memory {}B a rank", short_number(number("peak_memory_bytes")));
    if (event.contains("planned_memory") && event["planned_memory"].is_object())
      line += fmt::format(" (planned: {}B)",
                          short_number(json_number(event["planned_memory"], "total")));
    message(line);
  }
}

void Console::progress(std::string text) {
  if (style_.terminal && !style_.quiet) writer_.status(std::move(text));
}

void Console::message(std::string_view text) {
  if (style_.quiet) return;
  if (!writer_.write(ConsoleWriter::To::err, printable_lines(text) + "\n", true)) ++dropped_;
}

void Console::plain(std::string_view text) {
  if (!writer_.write(ConsoleWriter::To::out, text, false)) ++dropped_;
}

void Console::error(std::string_view text) {
  const std::string shown = printable_lines(text);
  if (!writer_.write(ConsoleWriter::To::err,
                     (style_.color_err ? fmt::format("\x1b[31m{}\x1b[0m", shown) : shown) + "\n",
                     true))
    ++dropped_;
}

}  // namespace sortie::launcher
