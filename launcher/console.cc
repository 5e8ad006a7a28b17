#include "launcher/console.h"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "launcher/run_folder.h"

namespace sortie::launcher {
namespace {
constexpr std::size_t kMaxPartialBytes = 64u << 10;
constexpr std::size_t kMaxQueuedBytes = 4u << 20;
constexpr double kPlainStepSeconds = 5.0;  // between step lines where no line can be rewritten
}  // namespace

Console::Style Console::detect() {
  Style style;
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::string_view(term) == "dumb" || *term == '\0';
  style.terminal = ::isatty(STDERR_FILENO) == 1 && !dumb;
  const char* no_color = std::getenv("NO_COLOR");
  style.color = style.terminal && (no_color == nullptr || *no_color == '\0');
  return style;
}

Console::Console(Style style) : style_(style), writer_([this] { run(); }) {}

Console::~Console() {
  std::unique_lock lock(mutex_);
  // A terminal that takes nothing (Ctrl-S) must not keep the launcher from ending.
  changed_.wait_for(lock, std::chrono::seconds(2), [this] { return queue_.empty() && idle_; });
  stop_ = true;
  status_.clear();
  const bool stuck = !idle_;
  lock.unlock();
  changed_.notify_all();
  if (stuck) writer_.detach();
}

void Console::enqueue(std::FILE* to, std::string text, bool must_show) {
  {
    const std::lock_guard lock(mutex_);
    if (!must_show && queued_bytes_ + text.size() > kMaxQueuedBytes) {
      ++dropped_;
      return;
    }
    queued_bytes_ += text.size();
    queue_.emplace_back(to, std::move(text));
  }
  changed_.notify_all();
}

void Console::run() {
  bool status_visible = false;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !queue_.empty() || status_changed_; });
    if (queue_.empty() && !status_changed_ && stop_) break;
    std::deque<std::pair<std::FILE*, std::string>> batch;
    batch.swap(queue_);
    queued_bytes_ = 0;
    const std::string status = status_;
    status_changed_ = false;
    idle_ = false;
    lock.unlock();
    if (status_visible) std::fputs("\r\x1b[K", stderr);
    for (const auto& [to, text] : batch) {
      std::fwrite(text.data(), 1, text.size(), to);
      std::fflush(to);
    }
    status_visible = style_.terminal && !status.empty();
    if (status_visible) std::fputs(status.c_str(), stderr);
    std::fflush(stderr);
    lock.lock();
    idle_ = true;
    changed_.notify_all();
  }
  if (status_visible) {
    std::fputs("\r\x1b[K", stderr);
    std::fflush(stderr);
  }
}

void Console::line(std::uint32_t rank, std::string_view host, wire::Stream stream,
                   std::string_view text) {
  // What follows the last '\r' is what a terminal would show of a progress line.
  while (!text.empty() && text.back() == '\r') text.remove_suffix(1);
  if (const auto last = text.rfind('\r'); last != text.npos) text.remove_prefix(last + 1);
  const std::string prefix = style_.color ? fmt::format("\x1b[2m[{} {}]\x1b[0m ", rank, host)
                                          : fmt::format("[{} {}] ", rank, host);
  enqueue(stream == wire::Stream::out ? stdout : stderr, prefix + printable(text) + "\n", false);
}

void Console::output(std::uint32_t rank, std::string_view host, wire::Stream stream,
                     std::string_view bytes) {
  std::string& partial = partials_[{rank, stream}].text;
  while (!bytes.empty()) {
    const auto end = bytes.find('\n');
    if (end == bytes.npos) {
      partial.append(bytes);
      if (partial.size() >= kMaxPartialBytes) {
        line(rank, host, stream, partial);
        partial.clear();
      }
      return;
    }
    if (partial.empty()) {
      line(rank, host, stream, bytes.substr(0, end));
    } else {
      partial.append(bytes.substr(0, end));
      line(rank, host, stream, partial);
      partial.clear();
    }
    bytes.remove_prefix(end + 1);
  }
}

void Console::end_of_rank(std::uint32_t rank, std::string_view host) {
  for (const wire::Stream stream : {wire::Stream::out, wire::Stream::err}) {
    const auto it = partials_.find({rank, stream});
    if (it == partials_.end()) continue;
    if (!it->second.text.empty()) line(rank, host, stream, it->second.text);
    partials_.erase(it);
  }
}

void Console::show_status(std::string text) {
  {
    const std::lock_guard lock(mutex_);
    status_ = std::move(text);
    status_changed_ = true;
  }
  changed_.notify_all();
}

void Console::event(const nlohmann::json& event) {
  if (style_.quiet) return;
  const std::string type = event.value("type", "");
  const auto number = [&](const char* key) {
    const auto it = event.find(key);
    return it != event.end() && it->is_number() ? it->get<double>() : std::nan("");
  };
  const auto text = [&](const char* key) {
    const auto it = event.find(key);
    return it != event.end() && it->is_string() ? printable(it->get<std::string>()) : std::string();
  };
  if (type == "step") {
    if (style_.terminal) show_status(step_line(event));
    const double now = unix_time();
    const bool edge =
        number("step") == 1 || number("step") == number("steps") || event.value("skipped", false);
    if (edge || (!style_.terminal && now - last_step_shown_ >= kPlainStepSeconds)) {
      last_step_shown_ = now;
      message(step_line(event));
    }
  } else if (type == "eval") {
    message(fmt::format("step {:>6.0f}  validation loss {:.4f}", number("step"), number("loss")));
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
    show_status("");
    std::string line = fmt::format("trained to step {:.0f} in {}, loss {:.4f}", number("step"),
                                   short_time(number("seconds")), number("loss"));
    if (std::isfinite(number("validation_loss")))
      line += fmt::format(", validation loss {:.4f}", number("validation_loss"));
    line += fmt::format(", peak memory {}B a rank", short_number(number("peak_memory_bytes")));
    message(line);
  }
}

void Console::message(std::string_view text) {
  enqueue(stderr, std::string(text) + "\n", true);
}

void Console::error(std::string_view text) {
  enqueue(stderr,
          (style_.color ? fmt::format("\x1b[31m{}\x1b[0m", text) : std::string(text)) + "\n", true);
}

void Console::result(std::string_view text) {
  enqueue(stdout, std::string(text), true);
}

std::size_t Console::dropped_lines() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace sortie::launcher
